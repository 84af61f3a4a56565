"""What small runs of every method family end in stays as it was: labels, bytes and scores.

`python tests/unmoved.py` also compares every bit of the weights, on one machine.
"""

import json
from pathlib import Path

import pytest
from unmoved import RUNS, play

BEFORE = json.loads((Path(__file__).parents[1] / "unmoved.json").read_text())


@pytest.mark.parametrize("name", RUNS)
def test_a_run_ends_where_it_ended_before(name, tmp_path):
    """Labels and bytes are equal; scores within 1e-6, or one hit of the few rows that a rounding may turn."""
    now, before = play(name, tmp_path / name), BEFORE[name]
    assert now["labels"] == before["labels"]
    assert now["bytes"] == before["bytes"]
    assert now["curve"] == pytest.approx(before["curve"], abs=1e-6)
    assert now["scores"] == pytest.approx(before["scores"], abs=1e-6)
