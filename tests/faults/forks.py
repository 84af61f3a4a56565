"""A piece of work in a process of its own, with bounds on its time and memory: what it said, and how it ended."""

import os
import resource
import select
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

FAILED = 99  # exit code of an exception that is no sentence


class Ended(NamedTuple):
    """How a piece of work ended: its exit code (minus a signal that ended it; None where its time was over)."""

    code: int | None
    said: str


def forked(work: Callable[[], object], place: Path, seconds: float, memory: int | None = None) -> Ended:
    """Do this in a child whose working folder is `place`; `memory` is how many bytes it may have beyond what it has."""
    with open(os.memfd_create("said"), "w+b") as said:  # no file: a disk may be what fails
        child = os.fork()
        if not child:
            _work(work, place, memory, said.fileno())
        watched = os.pidfd_open(child)
        over, _, _ = select.select([watched], [], [], seconds)
        os.close(watched)
        if not over:
            os.kill(child, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        said.seek(0)
        return Ended(code if over else None, said.read().decode(errors="replace"))


def _work(work: Callable[[], object], place: Path, memory: int | None, said: int) -> None:
    """The child, which never comes back."""
    code = FAILED
    try:
        os.chdir(place)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for stream in (1, 2):
            os.dup2(said, stream)
        sys.stdout, sys.stderr = (open(stream, "w", closefd=False) for stream in (1, 2))  # noqa: SIM115
        if memory is not None:
            now = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
            resource.setrlimit(resource.RLIMIT_AS, (now + memory, now + memory))
        work()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)
