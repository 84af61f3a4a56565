"""One way to write a file, and one way to read one.

What is written is there whole or not at all, and never behind a link: who can plant a link in a folder could otherwise
have umbel write over any file of the user. What is read is a regular file of a bounded size: a pipe would be waited for
without end. Whatever the system refuses is one sentence that names the file and says what to do.
"""

import errno
import fcntl
import json
import os
import re
import secrets
import stat
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from math import isfinite, prod
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol
from zipfile import ZipFile, ZipInfo

from umbel.errors import UmbelError

if TYPE_CHECKING:
    from numpy.typing import NDArray

LARGEST = 2**36  # bytes of any file
LARGEST_TEXT = 2**28  # bytes of a file of JSON
HARMLESS = 2**28  # bytes to which any file may unpack
PRIVATE, PUBLIC = 0o600, 0o666  # modes of new files, less the user's mask
_LEFT_OVER = re.compile(r"\..+\.[0-9a-f]{16}\.part")  # what a kill in the middle of a write leaves
_ADVICE = {
    errno.ENOSPC: "Make room on that disk, and give the same command again",
    errno.EDQUOT: "Make room on that disk, and give the same command again",
    errno.EFBIG: "Choose another folder, on a disk that takes larger files",
    errno.EACCES: "Choose a place that you may use, or change its rights",
    errno.EPERM: "Choose a place that you may use, or change its rights",
    errno.EROFS: "Choose another folder, on a disk that can be written to",
    errno.ENOENT: "Check the path",
    errno.ENOTDIR: "Check the path",
    errno.ENAMETOOLONG: "Choose a shorter name",
    errno.EISDIR: "Name a file in it",
    errno.EIO: "Check that disk, then give the same command again",
    errno.EMFILE: "Raise the limit of open files (ulimit -n), and give the same command again",
}

Bytes = bytes | bytearray | memoryview


class Digest(Protocol):
    """What hashlib's objects do."""

    def update(self, content: Bytes, /) -> None:
        """Take these bytes in as well."""

    def hexdigest(self) -> str:
        """The digest of all that was taken in."""


def digester() -> Digest:
    """A new digest. It finds accidents: who changes a file on purpose can change its digest as well."""
    return blake2b(digest_size=16)


def digest_of(content: Bytes) -> str:
    """32 hex digits of some bytes."""
    digest = digester()
    digest.update(content)
    return digest.hexdigest()


# Writing


def write_atomically(path: Path, content: Bytes | Iterable[Bytes], durable: bool = True, private: bool = False,
                     advice: str = "") -> str:
    """Write a file that is the old one or the new one, whatever happens; return its digest.

    A power cut may lose it unless `durable`. A `private` file, with rows or signatures in it, is for its owner alone.
    `advice` is what to do where it cannot be written, if that is not the usual.
    """
    pieces = [content] if isinstance(content, bytes | bytearray | memoryview) else content
    digest = digester()
    with _saying(path, "written", advice=advice):
        refuse_irregular(path)
        _clear(path.parent, re.compile(re.escape(f".{path.name}.") + r"[0-9a-f]{16}\.part"))
        handle, temporary = _temporary(path, PRIVATE if private else PUBLIC)
        try:
            with os.fdopen(handle, "wb", buffering=0) as file:
                for piece in pieces:
                    _write(file, piece)
                    digest.update(piece)
                if durable:
                    os.fsync(handle)
                os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise
        if durable:
            sync_folder(path.parent)
    return digest.hexdigest()


def append(path: Path, content: Bytes, private: bool = False) -> None:
    """Add to the end of a file, durably; where it is not there it begins, for its owner alone if it is `private`."""
    with _saying(path, "written"):
        refuse_irregular(path)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        handle = os.open(path, flags, PRIVATE if private else PUBLIC)
        with os.fdopen(handle, "wb", buffering=0) as file:
            _regular(path, os.fstat(handle))
            _write(file, content)
            os.fsync(handle)


def write_json(path: Path, value: Any, private: bool = False) -> str:
    """JSON for people: indented. Not-a-number is no JSON and is refused. Returns the file's digest."""
    return write_atomically(path, json_bytes(value), private=private)


def json_bytes(value: Any) -> bytes:
    """What `write_json` writes."""
    return (json.dumps(value, indent=2, allow_nan=False) + "\n").encode()


def make_folder(path: Path, advice: str = "") -> None:
    """A folder, with those around it, unless it is there; a link in its place is refused, even one to a folder."""
    with _saying(path, "made", "folder", advice):
        refuse_linked_folder(path)
        path.mkdir(parents=True, exist_ok=True)


def refuse_linked_folder(path: Path) -> None:
    """Raise where a link stands for a folder that umbel would find or make by itself."""
    if path.is_symlink():
        raise UmbelError(f"The folder {path} must be one itself. It is a link: remove it, or choose another place.")


def remove(path: Path) -> None:
    """Remove a file, or a link, if there is one."""
    with _saying(path, "removed"):
        path.unlink(missing_ok=True)


def clear_leftovers(folder: Path) -> None:
    """Remove what writes that were killed left in a folder; what is being written now stays."""
    with _saying(folder, "tidied", "folder"):
        _clear(folder, _LEFT_OVER)


def is_leftover(path: Path) -> bool:
    """Whether a killed write left this."""
    return _LEFT_OVER.fullmatch(path.name) is not None


def refuse_irregular(path: Path) -> None:
    """Raise where something stands that is no regular file: a link, a pipe, a device, a folder."""
    try:
        found = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return
    _regular(path, found)


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _temporary(path: Path, mode: int) -> tuple[int, Path]:
    """A new file beside `path`, open and locked: as long as its writer lives it is nobody's leftover."""
    while True:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
        fcntl.flock(handle, fcntl.LOCK_EX)
        if os.fstat(handle).st_nlink:
            return handle, temporary
        os.close(handle)  # whoever tidies came between the two lines above


def _write(file: Any, content: Bytes) -> None:
    rest = memoryview(content).cast("B")
    while len(rest):
        rest = rest[file.write(rest) :]


def _clear(folder: Path, names: re.Pattern[str]) -> None:
    """Remove temporaries whose writer is gone: as long as it lives it holds a lock on its own."""
    with os.scandir(folder) as entries:
        old = [Path(entry.path) for entry in entries if entry.name.endswith(".part") and names.fullmatch(entry.name)]
    for path in old:
        with suppress(FileNotFoundError, BlockingIOError):
            if not stat.S_ISREG(os.lstat(path).st_mode):
                continue  # no write of ours makes one, and opening it may wait for ever
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
            finally:
                os.close(handle)


# Reading


@contextmanager
def opened(path: Path, most: int = LARGEST, follow: bool = False) -> Iterator[IO[bytes]]:
    """A regular file of at most `most` bytes, open for reading.

    Links are followed only where a person named the file (`follow`), as with data sets and recipes.
    """
    with _saying(path, "read"):
        _regular(path, os.stat(path) if follow else os.lstat(path))  # first: opening a device can make it act
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
        with os.fdopen(handle, "rb") as file:
            found = os.fstat(handle)
            _regular(path, found)
            if found.st_size > most:
                raise UmbelError(f"The file {path} must have at most {most:,} bytes. It has {found.st_size:,}.")
            yield file


def read_bytes(path: Path, most: int = LARGEST, follow: bool = False) -> bytes:
    """All bytes of a regular file."""
    with opened(path, most, follow) as file:
        try:
            return file.read(os.fstat(file.fileno()).st_size)  # no more than was looked at, should it grow
        except MemoryError as error:
            raise UmbelError(f"The file {path} is larger than the memory that is free here.") from error


def read_text(path: Path, most: int = LARGEST_TEXT, follow: bool = False) -> str:
    """A file of text."""
    try:
        return read_bytes(path, most, follow).decode()
    except UnicodeDecodeError as error:
        raise UmbelError(f"The file {path} must hold text in UTF-8. It does not: {error.reason}.") from error


def read_json(path: Path, most: int = LARGEST_TEXT) -> Any:
    """JSON from a file of ours."""
    return parse_json(read_bytes(path, most), f"The file {path}")


def parse_json(content: Bytes | str, what: str) -> Any:
    """JSON as umbel writes it, with finite numbers only; `what` is named where it is something else."""
    text = content if isinstance(content, str) else bytes(content)
    try:
        return json.loads(text, parse_constant=_no_number, parse_float=_finite)
    except RecursionError as error:
        raise UmbelError(f"{what} must hold JSON as umbel writes it. It is nested too deeply.") from error
    except ValueError as error:  # no JSON, no UTF-8, or a number of thousands of digits
        raise UmbelError(f"{what} must hold JSON as umbel writes it. It cannot be read: {error}.") from error


def read_npz(path: Path, names: Container[str] | None = None, follow: bool = False) -> dict[str, "NDArray[Any]"]:
    """The arrays of an npz file, by name, all or those of `names` that are there.

    Each must be as large as it says, before memory is taken for it. One that needs pickle is refused.
    """
    import numpy as np  # not for every command

    with opened(path, follow=follow) as file:
        try:
            with ZipFile(file) as archive:
                members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
                wanted = {name: member for name, member in members.items() if names is None or name in names}
                size = os.fstat(file.fileno()).st_size
                refuse_bomb(path, sum(member.file_size for member in wanted.values()), size)
                if any(member.compress_size > size for member in wanted.values()):
                    raise ValueError("a member is larger than the file")
                return {name: _array(np, archive, member) for name, member in wanted.items()}
        except (OSError, UmbelError):
            raise
        except MemoryError as error:
            raise UmbelError(f"The file {path} is larger than the memory that is free here.") from error
        except Exception as error:  # zip, zlib, lzma and numpy's headers have a dozen kinds
            reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
            raise UmbelError(f"The file '{path}' must be a whole and readable npz file. Got: {reason}.") from error


def most_unpacked(size: int) -> int:
    """To how many bytes a file may unpack: nothing that people keep shrinks a hundredfold."""
    return max(HARMLESS, 100 * size)


def refuse_bomb(path: Path, unpacked: int, size: int) -> None:
    """Raise where a small file unpacks to a large one."""
    if unpacked > most_unpacked(size):
        raise UmbelError(f"The file {path} of {size:,} bytes unpacks to {unpacked:,} or more. One that shrinks so far"
                         " must be saved uncompressed to be read.")


def _array(np: Any, archive: ZipFile, member: ZipInfo) -> "NDArray[Any]":
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}.get(version)
        if read is None:
            raise ValueError(f"'{member.filename}' is of a format that is not known here")
        shape, columns_first, kind = read(file)
        count = prod(shape)
        if kind.hasobject:
            raise ValueError(f"'{member.filename}' holds objects, where only numbers and texts may stand")
        if min(shape, default=0) < 0 or count * kind.itemsize != member.file_size - file.tell():
            raise ValueError(f"'{member.filename}' is not an array of as many numbers as it says")
        raw, at = bytearray(count * kind.itemsize), 0
        while piece := file.read(2**20):
            raw[at : at + len(piece)] = piece
            at += len(piece)
        array: NDArray[Any] = np.ndarray(shape, kind, raw, order="F" if columns_first else "C")
        return array


def there(path: Path) -> bool:
    """Whether a file has this name, a link or a pipe included: reading it then says what is wrong."""
    return os.path.lexists(path)


def _no_number(word: str) -> Any:
    raise ValueError(f"{word} is no number")


def _finite(text: str) -> float:
    value = float(text)
    if not isfinite(value):
        raise ValueError(f"{text[:20]} is too large")
    return value


def _regular(path: Path, found: os.stat_result) -> None:
    kinds = {stat.S_IFLNK: "a link", stat.S_IFIFO: "a pipe", stat.S_IFDIR: "a folder", stat.S_IFSOCK: "a socket",
             stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}
    if not stat.S_ISREG(found.st_mode):
        kind = kinds.get(stat.S_IFMT(found.st_mode), "something else")
        raise UmbelError(f"{path} must be a regular file. It is {kind}: remove it, or choose another place.")


@contextmanager
def _saying(path: Path, done: str, kind: str = "file", advice: str = "") -> Iterator[None]:
    """What the system refuses, in a sentence."""
    try:
        yield
    except OSError as error:
        advice = advice or _ADVICE.get(error.errno or 0, "Check it, then give the same command again")
        raise UmbelError(f"The {kind} {path} cannot be {done}: {error.strerror or error}. {advice}.") from error
