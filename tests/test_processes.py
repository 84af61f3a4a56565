"""Processes that end with the one that started them."""

import resource
import subprocess
import sys
import threading

import pytest

from umbel.errors import UmbelError
from umbel.processes import how_it_ended, start


def test_a_child_ends_when_its_parent_is_killed() -> None:
    """In the midst of its work: their common stdout is closed when both have ended."""
    busy = "import signal; signal.alarm(60); print('at work', flush=True); [None for _ in iter(int, 1)]"
    parent = subprocess.Popen([sys.executable, "-c", f"from umbel.processes import start; start({busy!r}).wait()"],
                              stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    assert parent.stdout.readline() == "at work\n"
    parent.kill()
    assert parent.communicate(timeout=30)[0] == ""


def test_a_child_outlives_the_thread_that_started_it() -> None:
    """It ends with the process, not with a thread."""
    started: list[subprocess.Popen[str]] = []
    thread = threading.Thread(target=lambda: started.append(
        start("print(input())", stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)))
    thread.start()
    thread.join()
    assert started[0].communicate("still there\n", timeout=30)[0] == "still there\n"
    assert started[0].returncode == 0


def test_a_process_that_cannot_be_started_is_a_sentence() -> None:
    """No file may be opened any more."""
    start("pass").wait()
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        with pytest.raises(UmbelError, match=r"^A process cannot be started: Too many open files\. Take fewer at"):
            start("pass", stdin=subprocess.PIPE)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_how_a_process_ended_in_words() -> None:
    """Signals by their names; of SIGKILL the usual cause."""
    assert how_it_ended(3) == "ended with exit code 3"
    assert how_it_ended(-15) == "was ended by SIGTERM"
    assert how_it_ended(-9) == "was ended by SIGKILL, as where memory runs out"
    assert how_it_ended(-200) == "was ended by signal 200"
