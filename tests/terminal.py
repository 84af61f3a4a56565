"""What tests of the command line share: the answer to a typed command, and what it left behind."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

SMALL = ("--clients", "4", "--rounds", "2", "--epochs", "1", "--batch", "100", "--device", "cpu")


class Said(NamedTuple):
    code: int
    out: str
    err: str


Umbel = Callable[..., Said]


def snapshot(folder: Path) -> dict[str, bytes | None]:
    """Everything under a folder."""
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


def start(*words: str, cwd: Path, first: str = "") -> "subprocess.Popen[str]":
    """The command in its own process; `first` is code.

    It hears Ctrl-C and the end of its terminal, even where the shell, or nohup, had the tests ignore them.
    """
    program = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);" \
              " signal.signal(signal.SIGHUP, signal.SIG_DFL); import umbel.cli as c;" \
              f" {first or 'pass'}; c.main()"
    return subprocess.Popen([sys.executable, "-c", program, *words], cwd=cwd, text=True, env=environment(),
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def environment() -> dict[str, str]:
    """Without a data folder, and with output that is buffered as a person's is."""
    return {name: value for name, value in os.environ.items() if name not in ("UMBEL_DATA", "PYTHONUNBUFFERED")}


def stop_after(process: "subprocess.Popen[str]", round: int, by: signal.Signals) -> tuple[int, str]:
    """Send a signal as soon as a round's line is out; return the exit code and stderr.

    Who has inherited stderr must have ended by then, too.
    """
    assert process.stdout is not None
    assert any(f"round {round}/" in line for line in process.stdout)
    process.send_signal(by)
    err = process.communicate(timeout=60)[1]
    return process.returncode, err
