"""What all commands share: the app, the screen, how to fail."""

import os
import sys

import typer
from rich.console import Console
from rich.markup import escape

app = typer.Typer(
    help="Clustered federated learning: which clients belong together, and one model per group.",
    no_args_is_help=True, pretty_exceptions_enable=False,
)
console = Console()


def complain(sentence: str, mark: str = "[bold red]Error:[/bold red] ") -> None:
    """Say on stderr what is wrong."""
    Console(stderr=True).print(f"{mark}{escape(sentence)}", highlight=False, soft_wrap=True)


def fail(sentence: str, code: int) -> None:
    """Say why on stderr, and end with this exit code."""
    complain(sentence, "[bold red]Error:[/bold red] " if code == 2 else "")
    sys.exit(code)


def say(sentence: str) -> None:
    """One line as it is, however long: it may hold a path to be copied."""
    console.print(sentence, highlight=False, markup=False, soft_wrap=True)


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
