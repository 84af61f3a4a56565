"""Processes that are started here: they end with the one that started them, however that ends.

Each holds one end of a pipe whose other end is its parent's alone, and waits in a thread for it to be closed: no way to
end a process leaves it open. Linux could send a signal instead, but at the death of the *thread* that started the
child, and to nobody where the parent was quicker.
"""

import os
import signal
import subprocess
import sys
import threading
from functools import cache
from typing import Any

from umbel.errors import UmbelError


def start(code: str, *words: str, **how: Any) -> "subprocess.Popen[Any]":
    """Python that runs some code with these words as its arguments, until it is done or this process ends."""
    try:
        pipe = _lifeline(os.getpid())
        bound = f"from umbel.processes import end_with; end_with({pipe}); {code}"
        return subprocess.Popen([sys.executable, "-c", bound, *words], pass_fds=(pipe,), **how)
    except OSError as error:
        raise UmbelError(f"A process cannot be started: {error.strerror or error}. Take fewer at a time (--workers,"
                         " --jobs), and give the same command again.") from error


def end_with(pipe: int) -> None:
    """End this process when the other end of a pipe is closed.

    At once, and without a last checkpoint: so nothing can hold it up, and who gives the same command again finds the
    folder free. It costs no more than a kill, the rounds since the checkpoint before.
    """
    def wait() -> None:
        os.read(pipe, 1)
        os._exit(1)

    threading.Thread(target=wait, daemon=True, name="lifeline").start()


def how_it_ended(code: int) -> str:
    """The return code of a process, in words."""
    if code >= 0:
        return f"ended with exit code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    return f"was ended by {name}" + (", as where memory runs out" if code == -signal.SIGKILL else "")


@cache
def _lifeline(pid: int) -> int:
    """The end of a pipe for the children of this process; the other end is never closed, and no child's."""
    reading, _ = os.pipe()
    return reading
