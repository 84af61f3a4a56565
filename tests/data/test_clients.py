"""Which rows a client means."""

import numpy as np

from umbel.data.clients import rows_of


def test_validation_takes_a_tenth_of_each_label_and_never_the_only_row():
    """Of 20, 2 and 1 rows of three labels, 2, 1 and 0; `fit` is the rest."""
    y = np.array([0] * 20 + [1] * 2 + [2])
    rows, none = np.arange(23), np.empty(0, dtype=np.int64)
    validation, fit = (rows_of(rows, none, y, which, 0, "c000") for which in ("validation", "fit"))
    assert np.bincount(y[validation], minlength=3).tolist() == [2, 1, 0]
    assert np.bincount(y[fit], minlength=3).tolist() == [18, 1, 1]
    assert sorted([*validation, *fit]) == rows.tolist()


def test_validation_rows_follow_the_name_of_a_client():
    """The same rows under the same name, others under another; the run's seed counts as well."""
    y, rows = np.zeros(100, dtype=np.int64), np.arange(100)
    drawn = [rows_of(rows, rows[:0], y, "validation", seed, name).tolist()
             for seed, name in ((0, "a"), (0, "a"), (0, "b"), (1, "a"))]
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]
    assert drawn[0] != drawn[3]
