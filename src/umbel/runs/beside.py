"""Work that a thread does beside the rounds: one thing at a time, and seldom enough that it costs little."""

import time
from collections.abc import Callable
from threading import Thread

EVERY, SELDOM = 1.0, 30.0  # seconds of rest, at least and at most
SHARE = 9  # it rests so many times as long as it worked: a tenth of the time may go into it


class Beside:
    """One thread at a time. What goes wrong in it goes wrong for all who ask from then on: there is a gap."""

    def __init__(self) -> None:
        self._thread: Thread | None = None
        self._trouble: BaseException | None = None
        self._rests_until = 0.0

    def ready(self) -> bool:
        """Whether the last work is done and has rested."""
        if self._thread is not None and self._thread.is_alive():
            return False
        self.wait()
        return time.monotonic() >= self._rests_until

    def begin(self, work: Callable[[], None]) -> None:
        """Start some work, once the last is done."""
        self.wait()
        self._thread = Thread(target=self._do, args=(work, time.monotonic()), daemon=True, name="beside")
        self._thread.start()

    def wait(self) -> None:
        """Wait for what was begun."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._trouble is not None:
            raise self._trouble

    def _do(self, work: Callable[[], None], started: float) -> None:
        try:
            work()
        except BaseException as error:  # nobody looks at a thread's
            self._trouble = error
        ended = time.monotonic()
        self._rests_until = ended + min(SELDOM, max(EVERY, SHARE * (ended - started)))
