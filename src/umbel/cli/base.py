"""What all commands share: the app, the screen, how to fail."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape

from umbel.errors import UmbelError

app = typer.Typer(
    help="Clustered federated learning: which clients belong together, and one model per group.",
    no_args_is_help=True, pretty_exceptions_enable=False,
)
ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # signals that ask a command to end: it may tidy up first


class Screen(Console):
    """The standard output. A command whose output nobody reads any more (`| head`) ends as other tools do."""

    def on_broken_pipe(self) -> NoReturn:
        """Called by rich."""
        self._say_no_more()
        raise SystemExit(128 + signal.SIGPIPE)

    def print(self, *objects: Any, **options: Any) -> None:
        """As a Console does it; where the output cannot be written, a sentence says why."""
        try:
            super().print(*objects, **options)
        except OSError as error:
            self._say_no_more()
            raise UmbelError(f"What umbel prints cannot be written: {error.strerror or error}. Make room there, or let"
                             " it go elsewhere.") from error

    def _say_no_more(self) -> None:
        """Python would try to write the rest once more at the end."""
        self.quiet = True
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


console = Screen()


class Stopped(SystemExit):
    """A signal asks the command to end; its exit code is the one that shells give to such an end."""

    code: int

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)


@contextmanager
def stoppable() -> Iterator[None]:
    """Inside, signals that ask a command to end raise `Stopped`; one that is ignored, as under nohup, stays so."""
    def stop(number: int, _: Any) -> None:
        raise Stopped(number)

    before = {each: signal.getsignal(each) for each in ASKING}
    for each, handler in before.items():
        if handler != signal.SIG_IGN:
            signal.signal(each, stop)
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def undisturbed() -> None:
    """What is left to do before the end is cut short by Ctrl-C alone: others may ask more than once."""
    for each in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)


def complain(sentence: str, mark: str = "[bold red]Error:[/bold red] ") -> None:
    """Say on stderr what is wrong, where that can be written."""
    with suppress(OSError):
        Console(stderr=True).print(f"{mark}{escape(sentence)}", highlight=False, soft_wrap=True)


def fail(sentence: str, code: int) -> NoReturn:
    """Say why on stderr, and end with this exit code."""
    complain(sentence, "[bold red]Error:[/bold red] " if code == 2 else "")
    sys.exit(code)


def say(sentence: str) -> None:
    """One line as it is, however long: it may hold a path to be copied."""
    console.print(sentence, highlight=False, markup=False, soft_wrap=True)


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
