"""What the campaigns of commands share: a command in a child of its own, what came of it, and how many ended how."""

import io
import re
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import NamedTuple

from forks import forked

LIMIT = 60.0  # seconds, after which a child is said to hang
NO_NUMBER = re.compile(r"\bnan\b|\binf\b|\bundefined\b", re.IGNORECASE)


class Ended(NamedTuple):
    """How a child ended: its exit code, or minus the signal that ended it; None = it had to be ended."""

    code: int | None
    said: str

    @property
    def verdict(self) -> str:
        """`harmless`, `refused` in a sentence, `killed` as was asked, or in capitals what is wrong."""
        if self.code is None:
            return "HANGS"
        if "Traceback" in self.said or "Exception ignored" in self.said:
            return "TRACEBACK"
        if self.code == -signal.SIGKILL:
            return "killed"
        if self.code in (1, 2):
            return "refused" if "Error" in self.said else "SILENT EXIT"
        return "harmless" if self.code == 0 else f"EXIT {self.code}"


def in_child(work: Callable[[], None]) -> Ended:
    """Do some work in a fork of this process, from where it stands."""
    return Ended(*forked(work, Path.cwd(), LIMIT))


def warm_up() -> None:
    """Import what commands import only when they need it, once and not in every child: one run of each kind, here."""
    import torch

    import umbel.runs.newcomer  # noqa: F401
    from umbel.algorithms import import_all

    torch.set_num_threads(1)
    import_all()
    small = ("--clients", 4, "--rounds", 1, "--epochs", 1, "--batch", 100, "--device", "cpu", "--workers", 1)
    with tempfile.TemporaryDirectory() as name, redirect_stdout(io.StringIO()):
        for words in (("run", "flag", *small, "--quiet", "--out", f"{name}/a"),
                      ("compare", "solo", *small, "--quiet", "--out", f"{name}/b"), ("report", f"{name}/a")):
            with suppress(SystemExit):
                typed(*words)()


def typed(*words: object) -> Callable[[], None]:
    """An umbel command as work for a child."""
    def work() -> None:
        from umbel import cli

        sys.argv = ["umbel", *map(str, words)]
        cli.main()

    return work


def timeless(page: str) -> str:
    """A report's page without the minute in which it was written."""
    return re.sub(r" on \d{4}-\d\d-\d\d \d\d:\d\d UTC\.", ".", page)


class Tally:
    """How many trials ended how, and the first few that are wrong."""

    def __init__(self) -> None:
        self.verdicts: Counter[str] = Counter()
        self.wrong: list[str] = []

    def add(self, name: str, verdict: str, said: str = "") -> None:
        """One trial; a verdict in capitals is wrong."""
        self.verdicts[verdict] += 1
        if verdict[0].isupper():
            self.wrong.append(f"{name}: {verdict}\n{said[-2000:]}")

    def told(self) -> str:
        """One line, then what is wrong."""
        counts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(self.verdicts.items()))
        return "\n".join([f"{sum(self.verdicts.values())} tried: {counts or 'none'}; {len(self.wrong)} wrong",
                          *self.wrong[:5]])
