"""Which rows a client means."""

import numpy as np
import pytest

from umbel.data.clients import rows_of


@pytest.mark.parametrize(("rows", "held"), [(1, 0), (2, 1), (14, 1), (16, 2), (200, 20)])
def test_validation_takes_a_tenth_and_never_the_only_row(rows, held):
    """Of 2 rows one, of 1 none; `fit` is the rest."""
    train, none = np.arange(rows), np.empty(0, dtype=np.int64)
    validation, fit = (rows_of(train, none, which, 0, "c000") for which in ("validation", "fit"))
    assert (len(validation), len(fit)) == (held, rows - held)
    assert sorted([*validation, *fit]) == train.tolist()


def test_validation_rows_are_drawn_whatever_their_place():
    """Over 2,000 clients of 20 rows each row is held back by a tenth of them, and every pair as often as any other."""
    train, none = np.arange(20), np.empty(0, dtype=np.int64)
    drawn = np.zeros((2000, 20))
    for k, mask in enumerate(drawn):
        mask[rows_of(train, none, "validation", 0, f"c{k}")] = 1
    assert drawn.mean(0) == pytest.approx(0.1, abs=0.03)
    pairs = (drawn.T @ drawn / 2000)[np.triu_indices(20, 1)]
    assert pairs.max() < 0.02  # 1 of 190


def test_validation_rows_follow_the_name_of_a_client():
    """The same rows under the same name, others under another; the run's seed counts as well."""
    rows = np.arange(100)
    drawn = [rows_of(rows, rows[:0], "validation", seed, name).tolist()
             for seed, name in ((0, "a"), (0, "a"), (0, "b"), (1, "a"))]
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]
    assert drawn[0] != drawn[3]
