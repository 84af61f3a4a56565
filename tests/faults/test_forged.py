"""Forged run folders: everybody who reads one says a sentence, or takes no harm."""

from pathlib import Path

import pytest
from forged import JSON, campaign, forge, places, runs


@pytest.mark.slow
def test_no_reader_of_a_forged_folder_fails(tmp_path: Path) -> None:
    """Forty folders, each read seven ways: no traceback, no endless wait, no page that says nan."""
    verdicts = list(campaign(range(40), tmp_path))
    assert [verdict for verdict in verdicts if verdict.kind == "failed"] == []
    assert sum(verdict.kind == "refused" for verdict in verdicts) > 20


@pytest.mark.slow
def test_the_same_number_forges_the_same_thing(tmp_path: Path) -> None:
    """A folder that failed can be forged again."""
    kept = runs(tmp_path)["ended"]
    said = [forge_copy(kept, tmp_path / f"{k}", number) for number in (7, 11) for k in (f"a{number}", f"b{number}")]
    assert said[0] == said[1] != said[2] == said[3]


def forge_copy(kept: Path, folder: Path, number: int) -> tuple[str, dict[str, bytes]]:
    folder.mkdir()
    for path in kept.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    said = forge(folder, number)
    return said, {path.name: path.read_bytes() for path in folder.iterdir()}


def test_every_key_path_is_a_place_to_forge() -> None:
    """Of tables and lists, the whole included."""
    assert list(places({"a": [1, {"b": 2}]})) == [(), ("a",), ("a", 0), ("a", 1), ("a", 1, "b")]
    assert "result.json" in JSON
