"""What the campaigns share: a piece of work in a child process of its own, with a limit, and what came of it."""

import os
import re
import select
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

LIMIT = 60.0  # seconds, after which a child is said to hang
NO_NUMBER = re.compile(r"\bnan\b|\binf\b|\bundefined\b", re.IGNORECASE)


class Ended(NamedTuple):
    """How a child ended: its exit code, or minus the signal that ended it; None = it had to be ended."""

    code: int | None
    said: str

    @property
    def verdict(self) -> str:
        """`harmless`, `refused` in a sentence, `killed` as was asked, or what is wrong."""
        if self.code is None:
            return "HANGS"
        if "Traceback" in self.said or "Exception ignored" in self.said:
            return "TRACEBACK"
        if self.code == -signal.SIGKILL:
            return "killed"
        if self.code in (1, 2):
            return "refused" if "Error" in self.said else "SILENT EXIT"
        return "harmless" if self.code == 0 else f"EXIT {self.code}"


def in_child(work: Callable[[], None], log: Path, limit: float = LIMIT) -> Ended:
    """Do some work in a fork of this process; what it prints goes to `log`. SystemExit is its exit code."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if not child:
        _be_child(work, log)
    handle = os.pidfd_open(child)
    try:
        ready, _, _ = select.select([handle], [], [], limit)
        if not ready:
            os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
    finally:
        os.close(handle)
    return Ended(os.waitstatus_to_exitcode(status) if ready else None, log.read_text(errors="replace"))


def _be_child(work: Callable[[], None], log: Path) -> None:
    code = 1
    try:
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        work()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def typed(*words: object) -> Callable[[], None]:
    """An umbel command as work for a child."""
    def work() -> None:
        from umbel import cli

        sys.argv = ["umbel", *map(str, words)]
        cli.main()

    return work


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
