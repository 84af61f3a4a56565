"""Folders of temporary data, and who removes them."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from umbel import scratch
from umbel.errors import UmbelError
from umbel.scratch import Scratch


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_folder_is_its_owners_alone_and_goes_with_it(place: Path) -> None:
    """Mode 0700; removed with what is in it when it is let go of."""
    made = Scratch()
    assert made.path.parent == place
    assert made.path.stat().st_mode & 0o777 == 0o700
    (made.path / "x.npy").write_bytes(b"data")
    del made
    assert not list(place.iterdir())


def test_what_a_killed_process_left_is_removed_by_the_next(place: Path) -> None:
    """What a living one has stays, and so does what only looks alike: a link, a file, a name of another kind."""
    waits = "from umbel.scratch import Scratch; mine = Scratch(); print(mine.path, flush=True); input()"
    owners = [subprocess.Popen([sys.executable, "-c", waits], env={**os.environ, "TMPDIR": str(place)}, text=True,
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(2)]
    paths = [Path(owner.stdout.readline().strip()) for owner in owners if owner.stdout is not None]
    assert all(path.is_dir() for path in paths)
    for path in paths:
        (path / "x.npy").write_bytes(b"data")
    target = place / "umbel-projects"
    target.mkdir()
    (target / "note").write_text("mine")
    (place / "umbel-0123456789abcdef").symlink_to(target)
    (place / "umbel-fedcba9876543210").write_text("a file")
    owners[0].kill()
    owners[0].communicate()
    mine = Scratch()
    assert not paths[0].exists()
    assert (paths[1] / "x.npy").exists()
    assert (target / "note").read_text() == "mine"
    owners[1].communicate("\n")
    assert not paths[1].exists()
    mine.remove()
    assert sorted(path.name for path in place.iterdir()) == [
        "umbel-0123456789abcdef", "umbel-fedcba9876543210", "umbel-projects"]


@pytest.mark.parametrize("before", [True, False], ids=["before it is opened", "before it is locked"])
def test_a_folder_that_is_removed_before_its_lock_is_made_anew(before: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever tidies cannot know that its owner is about to lock it."""
    opened, removed = scratch._opened, []

    def tidied(path: Path) -> int:
        if removed:
            return opened(path)
        removed.append(path)
        handle = None if before else opened(path)
        path.rmdir()
        return opened(path) if handle is None else handle

    monkeypatch.setattr(scratch, "_opened", tidied)
    made = Scratch()
    assert made.path.is_dir()
    assert made.path != removed[0]
    made.remove()


def test_no_place_is_a_sentence(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It names the place and says what to do."""
    monkeypatch.setattr(tempfile, "tempdir", str(place / "none"))
    with pytest.raises(UmbelError, match=r"cannot be made in .*/none: No such file or directory\. Set TMPDIR to a"):
        Scratch()
