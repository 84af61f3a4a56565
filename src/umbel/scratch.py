"""Folders of temporary data: their owner's alone, and gone when it is, however it ended."""

import fcntl
import os
import re
import secrets
import shutil
import tempfile
import weakref
from contextlib import suppress
from pathlib import Path

from umbel.errors import UmbelError

MORE_ROOM = "Set TMPDIR to a folder with more room"
_NAME = re.compile(r"umbel-[0-9a-f]{16}")


class Scratch:
    """A new folder for temporary data, which only this user can read.

    Its owner holds a lock on it. One whose lock is free has no owner any more: whoever makes the next one removes it.
    """

    def __init__(self) -> None:
        place = Path(tempfile.gettempdir())
        try:
            _clear(place)
            self.path, handle = _made(place)
        except OSError as error:
            raise UmbelError(f"A folder for temporary data cannot be made in {place}: {error.strerror or error}."
                             f" {MORE_ROOM}.") from error
        self.remove = weakref.finalize(self, _remove, self.path, handle)


def _made(place: Path) -> tuple[Path, int]:
    """A new folder that is locked."""
    while True:
        path = place / f"umbel-{secrets.token_hex(8)}"
        path.mkdir(mode=0o700)
        with suppress(FileNotFoundError):  # somebody who tidies may come before the lock; then once more
            handle = _opened(path)
            fcntl.flock(handle, fcntl.LOCK_EX)
            if path.exists():
                return path, handle
            os.close(handle)


def _clear(place: Path) -> None:
    """Remove folders of this user whose owners are gone; where that fails they stay."""
    with os.scandir(place) as entries:
        names = [entry.path for entry in entries if _NAME.fullmatch(entry.name)]
    for path in names:
        with suppress(OSError):
            handle = _opened(Path(path))
            try:
                if os.fstat(handle).st_uid == os.geteuid():
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path)
            finally:
                os.close(handle)


def _opened(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _remove(path: Path, handle: int) -> None:
    shutil.rmtree(path, ignore_errors=True)
    os.close(handle)
