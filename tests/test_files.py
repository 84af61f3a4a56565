"""One way to write a file and one way to read one."""

import errno
import fcntl
import io
import json
import os
import stat
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from umbel import files
from umbel.errors import UmbelError
from umbel.runs.recipe import read_toml


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_written_whole_and_its_digest_returned(tmp_path: Path) -> None:
    """In one piece or in several; an old one is replaced; nothing else is left in the folder."""
    path = tmp_path / "a.json"
    assert files.write_atomically(path, b"one") == files.digest_of(b"one")
    assert files.write_atomically(path, [b"t", memoryview(b"wo")], durable=False) == files.digest_of(b"two")
    assert path.read_bytes() == b"two"
    files.append(path, b"!")
    assert path.read_bytes() == b"two!"
    assert names(tmp_path) == ["a.json"]


@pytest.mark.parametrize("write", [files.write_atomically, files.append])
def test_nothing_is_written_behind_a_link(write: Any, tmp_path: Path) -> None:
    """A link is refused by its name, whether or not something stands behind it, and stays as it is."""
    outside = tmp_path / "outside"
    outside.write_bytes(b"mine")
    for target in (outside, tmp_path / "nothing"):
        link = tmp_path / "link"
        link.symlink_to(target)
        with pytest.raises(UmbelError, match=r"link must be a regular file. It is a link: remove it"):
            write(link, b"theirs")
        assert link.is_symlink()
        link.unlink()
    assert outside.read_bytes() == b"mine"
    assert names(tmp_path) == ["outside"]


def test_a_planted_temporary_is_not_written_through(tmp_path: Path) -> None:
    """Temporaries have names that nobody can guess; older ones' names mean nothing."""
    outside = tmp_path / "outside"
    outside.write_bytes(b"mine")
    (tmp_path / ".page.html.part").symlink_to(outside)
    files.write_atomically(tmp_path / "page.html", b"page")
    assert outside.read_bytes() == b"mine"


@pytest.mark.parametrize("reader", [files.read_bytes, files.read_text, files.read_json, files.read_npz])
def test_only_regular_files_are_read(reader: Any, tmp_path: Path) -> None:
    """A pipe would be waited for, a device may never end, a link may lead anywhere: each is named."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "folder").mkdir()
    for name, kind in (("pipe", "a pipe"), ("zero", "a link"), ("folder", "a folder")):
        with pytest.raises(UmbelError, match=f"{name} must be a regular file. It is {kind}"):
            reader(tmp_path / name)
    with pytest.raises(UmbelError, match=r"cannot be read: No such file or directory. Check the path"):
        reader(tmp_path / "missing")


def test_a_link_that_a_person_named_is_followed_to_a_regular_file(tmp_path: Path) -> None:
    """To no other."""
    (tmp_path / "real").write_bytes(b"rows")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "zero").symlink_to("/dev/zero")
    assert files.read_bytes(tmp_path / "link", follow=True) == b"rows"
    with pytest.raises(UmbelError, match="It is a device"):
        files.read_bytes(tmp_path / "zero", follow=True)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    """A sparse file says that it has a terabyte, and takes no room."""
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(UmbelError, match=r"must have at most 68,719,476,736 bytes. It has 1,099,511,627,776"):
        files.read_bytes(path)
    with pytest.raises(UmbelError, match="at most 10 bytes"):
        files.read_json(path, most=10)


@pytest.mark.parametrize(("text", "why"), [
    ("NaN", "NaN is no number"), ("[-Infinity]", "-Infinity is no number"), ("1e999", "1e999 is too large"),
    ("[" * 100_000, "nested too deeply"), ("9" * 5000, "Exceeds the limit"), ("{", "Expecting"), ("\udcff", "decode"),
])
def test_json_is_json(text: str, why: str, tmp_path: Path) -> None:
    """Numbers that are none, nesting without end and cut text: one sentence each, which names the file."""
    path = tmp_path / "x.json"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(UmbelError, match=f"The file .*x.json must hold JSON as umbel writes it. .*{why}"):
        files.read_json(path)


def test_private_files_are_for_their_owner(tmp_path: Path) -> None:
    """Others follow the user's mask."""
    old = os.umask(0o022)
    try:
        files.write_atomically(tmp_path / "rows", b"", private=True)
        files.write_atomically(tmp_path / "page", b"")
    finally:
        os.umask(old)
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("rows", "page")] == [0o600, 0o644]


def test_what_a_killed_write_left_goes_and_what_is_being_written_stays(tmp_path: Path) -> None:
    """A writer that lives holds a lock on its temporary."""
    dead, alive = (tmp_path / f".state.{digit * 16}.part" for digit in "0a")
    for path in (dead, alive, tmp_path / ".state.part", tmp_path / ".other.0000000000000000.part"):
        path.write_bytes(b"half")
    handle = os.open(alive, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    files.write_atomically(tmp_path / "state", b"whole")
    assert names(tmp_path) == [".other.0000000000000000.part", alive.name, ".state.part", "state"]
    files.clear_leftovers(tmp_path)
    assert names(tmp_path) == [alive.name, ".state.part", "state"]
    os.close(handle)
    files.clear_leftovers(tmp_path)
    assert names(tmp_path) == [".state.part", "state"]


@pytest.mark.parametrize(("number", "advice"), [
    (errno.ENOSPC, "No space left on device. Make room on that disk, and give the same command again."),
    (errno.EIO, "Input/output error. Check that disk, then give the same command again."),
])
def test_what_the_disk_refuses_is_a_sentence(
    number: int, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It names the file and says what to do; the old file stays, and the unfinished one goes."""
    path = tmp_path / "state"
    path.write_bytes(b"old")

    def full(handle: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UmbelError) as error:
        files.write_atomically(path, b"new")
    assert str(error.value) == f"The file {path} cannot be written: {advice}"
    assert (path.read_bytes(), names(tmp_path)) == (b"old", ["state"])


def test_a_folder_is_not_made_behind_a_link(tmp_path: Path) -> None:
    """Not even of one that is there; what cannot be made is named."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    files.make_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    with pytest.raises(UmbelError, match=r"link must be one itself. It is a link"):
        files.make_folder(tmp_path / "link")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UmbelError, match=r"file cannot be made: File exists. Change --out"):
        files.make_folder(tmp_path / "file", advice="Change --out")


# npz


ARRAYS = {
    "a": np.arange(6).reshape(2, 3), "b": np.array("text é"), "c": np.array(["x", "yy"]), "d": np.empty((0, 3)),
    "e": np.asfortranarray(np.arange(6.0).reshape(2, 3)), "f": np.array(3.5), "g": np.arange(3, dtype=">i2"),
}


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_are_read_as_numpy_reads_them(save: Any, tmp_path: Path) -> None:
    """All of them, or those that are asked for; they can be written to."""
    save(tmp_path / "x.npz", **ARRAYS)
    found = files.read_npz(tmp_path / "x.npz")
    assert list(found) == list(ARRAYS)
    for name, array in ARRAYS.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        assert np.array_equal(found[name], array)
        assert found[name].flags.writeable
    assert list(files.read_npz(tmp_path / "x.npz", ("b", "z"))) == ["b"]


def forged(shape: tuple[int, ...], kind: str = "<f8", body: bytes = b"12345678") -> bytes:
    """An npy file that says it has another shape than it has."""
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": kind, "fortran_order": False, "shape": shape})
    return head.getvalue() + body


@pytest.mark.parametrize(("content", "why"), [
    (forged((10**12,)), "not an array of as many numbers as it says"),
    (forged((2**40, 2**40)), "not an array of as many numbers as it says"),
    (forged((-1, -1)), "not an array of as many numbers as it says"),
    (forged((1,), "|O"), "holds objects, where only numbers and texts may stand"),
    (forged((1,), body=b"1234"), "not an array of as many numbers as it says"),
    (b"\x93NUMPY\x09\x00", "format that is not known here"),
    (b"", "read"),
])
def test_an_array_must_be_as_large_as_it_says(content: bytes, why: str, tmp_path: Path) -> None:
    """No memory is taken before that is known; objects, which need pickle, are none."""
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("x.npy", content)
    with pytest.raises(UmbelError, match=f"x.npz' must be a whole and readable npz file. Got: .*{why}"):
        files.read_npz(tmp_path / "x.npz")


def test_a_small_file_that_unpacks_to_a_large_one_is_refused(tmp_path: Path) -> None:
    """Whatever it holds, it says so before it is unpacked."""
    with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", forged((2**29,), "|u1", bytes(2**29)))
    with pytest.raises(UmbelError, match=r"bytes unpacks to 536,87.* must be saved uncompressed"):
        files.read_npz(tmp_path / "x.npz")


def test_json_for_people(tmp_path: Path) -> None:
    """Indented, and no NaN."""
    files.write_json(tmp_path / "x.json", {"a": [1.5, None]})
    assert json.loads((tmp_path / "x.json").read_text()) == files.read_json(tmp_path / "x.json") == {"a": [1.5, None]}
    with pytest.raises(ValueError, match="not JSON compliant"):
        files.write_json(tmp_path / "x.json", float("nan"))


def test_a_recipe_is_a_small_file(tmp_path: Path) -> None:
    """One key of a megabyte of dots would be read for an hour."""
    (tmp_path / "recipe.toml").write_text("a." * 500_000 + "b = 1")
    with pytest.raises(UmbelError, match=r"recipe\.toml must have at most 32,768 bytes\. It has 1,000,005"):
        read_toml(tmp_path / "recipe.toml")
