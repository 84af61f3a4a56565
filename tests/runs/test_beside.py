"""A thread that works beside the rounds."""

import threading
from collections.abc import Callable

import pytest

from umbel.runs import beside
from umbel.runs.beside import EVERY, SELDOM, SHARE, Beside


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """A clock that stands still until it is put on."""
    now = [100.0]
    monkeypatch.setattr(beside.time, "monotonic", lambda: now[0])

    def put_on(seconds: float) -> None:
        now[0] += seconds

    return put_on


def test_work_is_done_beside_and_can_be_waited_for() -> None:
    """`begin` returns while the work goes on; one thing at a time."""
    gate, done, worker = threading.Event(), [], Beside()
    worker.begin(lambda: (gate.wait(30), done.append(threading.current_thread().name)))
    assert not worker.ready()
    assert done == []
    gate.set()
    worker.wait()
    assert done == ["beside"]


@pytest.mark.parametrize(("worked", "rests"), [(0.0, EVERY), (1.0, SHARE), (60.0, SELDOM)])
def test_it_rests_nine_times_as_long_as_it_worked(
    worked: float, rests: float, clock: Callable[[float], None],
) -> None:
    """At least a second, at most half a minute."""
    worker = Beside()
    worker.begin(lambda: clock(worked))
    worker.wait()
    assert not worker.ready()
    clock(rests - 0.01)
    assert not worker.ready()
    clock(0.02)
    assert worker.ready()


@pytest.mark.parametrize("ask", [Beside.ready, Beside.wait, lambda worker: worker.begin(lambda: None)])
def test_what_goes_wrong_beside_goes_wrong_for_all_who_ask(ask: Callable[[Beside], object]) -> None:
    """A full disk must not pass unseen because a thread met it, and nothing is written after what is missing."""
    worker = Beside()

    def fails() -> None:
        raise OSError("no room")

    worker.begin(fails)
    worker._thread.join()
    for _ in range(2):
        with pytest.raises(OSError, match="no room"):
            ask(worker)
