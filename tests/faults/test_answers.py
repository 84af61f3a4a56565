"""Mutated answers: a small part of the campaign, which is a program of its own (`answers.py`)."""

import pytest
from answers import campaign


@pytest.mark.slow
def test_mutated_answers_are_refused_or_do_no_harm() -> None:
    """A few hundred over all tasks and methods: none ends a run in a traceback, none is believed that cannot be."""
    made, tally = campaign(500, seed=1)
    assert not tally.wrong, tally.told()
    assert made >= 500
    assert tally.verdicts["to its end"] > 20
