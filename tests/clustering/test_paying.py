"""Whether clusters pay: the paired test and its words, on numbers that can be worked out by hand."""

import numpy as np
import pytest
import torch
from scipy import stats

from umbel.clustering.paying import FEW, LEVEL, Paid, paid, words


def told(*clients):
    """What clients tell of their rows' differences: sums, sums of squares, counts."""
    rows = [np.array(each, dtype=float) for each in clients]
    return [np.array([f(each) for each in rows]) for f in (np.sum, lambda each: np.sum(each**2), len)]


def test_many_clients_are_compared_by_their_means():
    """Student's paired test on one number a client, whatever its rows are like."""
    means = [0.5, 0.3, 0.1, 0.4, 0.2, 0.6, -0.1, 0.0]
    found = paid(3, *told(*[[mean - 1, mean + 1] for mean in means[:-1]], [0.0]))
    slow = stats.ttest_1samp(means, 0)
    assert found.gain == pytest.approx(0.25)
    assert found.error == pytest.approx(np.std(means, ddof=1) / np.sqrt(8))
    assert found.p == pytest.approx(slow.pvalue)
    assert (found.clusters, found.clients, found.rows) == (3, 8, 15)
    assert found.over_clients
    assert found.better
    assert not found.worse


def test_few_clients_are_compared_by_their_rows():
    """Means 2 and 3, squares around them 2 and 2 with two rows to spare: a variance of 2, halved for each mean."""
    found = paid(2, *told([1, 3], [2, 4]))
    assert found.gain == 2.5
    assert found.error == pytest.approx(np.sqrt(2 * (1 / 2 + 1 / 2)) / 2)
    assert found.p == pytest.approx(2 * stats.t.sf(2.5 / np.sqrt(0.5), 2))
    assert not found.over_clients
    assert not found.better  # p = 0.07


def test_of_one_client_it_is_the_test_of_its_rows():
    """One sample: no more and no less than Student's test."""
    rows = [0.2, -0.1, 0.4, 0.3, 0.5, 0.1]
    found, slow = paid(2, *told(rows)), stats.ttest_1samp(rows, 0)
    assert (found.gain, found.p) == (pytest.approx(np.mean(rows)), pytest.approx(slow.pvalue))


def test_clients_count_alike_however_many_rows_they_have():
    """A large site that gains does not hide a small one that loses."""
    found = paid(2, *told([1.0] * 30, [-1.0] * 3))
    assert found.gain == 0
    assert found.p == 1


def test_signs_decide_who_is_better():
    """The same differences the other way round: one model is better, with the same p."""
    gain, squares, size = told(*[[0.1, 0.2, 0.3, 0.25]] * 4)
    up, down = paid(2, gain, squares, size), paid(2, -gain, squares, size)
    assert up.better
    assert down.worse
    assert up.p == down.p < LEVEL
    assert not up.worse
    assert not down.better


@pytest.mark.parametrize("clients", [[], [[]], [[0.7]], [[0.7], [0.9], [0.8]]],
                         ids=["nobody", "no row", "one row", "one row each"])
def test_too_few_rows_tell_nothing(clients):
    """No error is known: not a split by chance, but the answer that it cannot be told."""
    found = paid(2, *told(*clients)) if clients else paid(2, *np.zeros((3, 0)))
    assert found.p == 1
    assert np.isnan(found.error)
    assert not found.better
    assert not found.worse
    rows = sum(len(each) for each in clients)
    assert words(found) == (f"too few validation rows ({rows}) to tell whether 2 clusters serve better than one model")


def test_clients_without_validation_rows_do_not_count():
    """They are no zero among the means."""
    assert paid(2, *told([1, 3], [], [2, 4])) == paid(2, *told([1, 3], [2, 4]))


def test_identical_models_cannot_be_told_apart():
    """No difference without any spread is none; a difference without any is one."""
    assert paid(2, *told(*[[0.0, 0.0]] * 10)).p == 1
    assert paid(2, *told(*[[0.0, 0.0]] * 3)).p == 1
    assert paid(2, *told(*[[1.0, 1.0]] * 3)).p == 0


def test_it_is_kept_as_a_tensor():
    """A state holds tensors only."""
    found = paid(2, *told([1, 3], [2, 4]))
    assert Paid(*torch.tensor(found, dtype=torch.float64).tolist()) == found


@pytest.mark.parametrize("clients", [3, FEW - 1, FEW, 20])
def test_the_level_is_kept_where_nothing_is_there(clients):
    """2,000 draws of normal rows, unequal clients: rejected in about one of twenty, as often one way as the other."""
    rng = np.random.default_rng(clients)
    size = rng.integers(2, 15, clients)
    found = [paid(2, *told(*[rng.normal(size=n) for n in size])) for _ in range(2000)]
    assert sum(each.better for each in found) / 2000 == pytest.approx(LEVEL / 2, abs=0.012)
    assert sum(each.worse for each in found) / 2000 == pytest.approx(LEVEL / 2, abs=0.012)


def test_words():
    """What is told to people."""
    assert words(Paid(0.413, 0.052, 1e-5, 4, 20, 160)) == (
        "4 clusters lower validation loss by 0.41 ± 0.05 against one model (p < 0.001, paired over 20 clients)")
    assert words(Paid(-0.413, 0.0052, 0.0213, 4, 20, 160)) == (
        "4 clusters raise validation loss by 0.413 ± 0.005 against one model (p = 0.021, paired over 20 clients)")
    assert words(Paid(0.4, 0.5, 0.43, 4, 5, 81)) == (
        "one model and 4 clusters cannot be told apart by validation loss (p = 0.43, paired over 81 rows)")
    assert words(Paid(12.34, 2.3, 0.001, 2, 8, 81)).startswith("2 clusters lower validation loss by 12 ± 2 against")
    assert words(Paid(1.0, 0.0, 0.0, 2, 3, 6)).startswith("2 clusters lower validation loss by 1.00 ± 0.00 against")
    assert words(Paid(0.0, 0.0, 1.0, 1, 8, 80)).startswith("one model and one cluster cannot be told apart")
