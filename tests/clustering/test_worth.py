"""What plans are worth: paired over clients, the simplest one that is no worse, and the sentence."""

import numpy as np
import pytest
from scipy import stats

from umbel.clustering.worth import ONE, PLANS, advice, error_of, p_of, worth
from umbel.nets.objective import METRICS

ACCURACY, RMSE = METRICS["accuracy"], METRICS["rmse"]
ROWS = np.full(4, 10)


def test_a_difference_is_students():
    """The p-value and the error of gains over clients are those of scipy's test."""
    gains = np.array([0.1, 0.2, 0.0, 0.3])
    slow = stats.ttest_1samp(gains, 0)
    assert p_of(gains) == pytest.approx(slow.pvalue)
    assert error_of(gains) == pytest.approx(np.std(gains, ddof=1) / 2)
    assert (p_of(np.zeros(3)), p_of(np.ones(3)), p_of(np.ones(1))) == (1.0, 0.0, 1.0)


def test_the_best_plan_is_taken_and_judged_against_one_model():
    """Mean, worst client and a 95 % interval of what a client gains over one model."""
    one, alone = np.array([0.5, 0.6, 0.7, 0.8]), np.array([0.7, 0.7, 0.9, 0.9])
    found = worth([0, 4], np.stack([one, alone]), ROWS, ACCURACY)
    assert PLANS[found.chosen].groups == "alone"
    assert (found.over, found.rows) == (4, 40)
    assert found.gain == pytest.approx(0.15)
    wide = stats.t.ppf(0.975, 3) * np.std(alone - one, ddof=1) / 2
    judged = found.plans[1]
    assert (judged.mean, judged.low, judged.high, judged.worst) == pytest.approx((0.8, 0.15 - wide, 0.15 + wide, 0.7))
    assert found.differs


def test_of_plans_that_are_alike_the_simplest_is_taken():
    """A plan that is ahead by less than half its standard error does not count."""
    one = np.array([0.5, 0.6, 0.7, 0.8])
    found = worth([0, 1], np.stack([one, one + np.array([0.2, -0.2, 0.15, -0.14])]), ROWS, ACCURACY)
    assert found.chosen == ONE
    assert not found.differs
    assert advice(found, 3, ACCURACY) == (
        "one model: in a short trial no other plan served clients better (paired over 4 clients)")


def test_alone_must_be_better_by_a_test():
    """A trial is short: a better mean alone is not enough for everybody alone, as it is for plans that share."""
    one = np.array([0.5, 0.6, 0.7, 0.8])
    unsure = one + np.array([0.4, -0.1, 0.3, 0.0])
    assert worth([0, 4], np.stack([one, unsure]), ROWS, ACCURACY).chosen == ONE
    assert worth([0, 1], np.stack([one, unsure]), ROWS, ACCURACY).chosen == 1
    sure = one + np.array([0.2, 0.15, 0.2, 0.15])
    assert PLANS[worth([0, 1, 4], np.stack([one, one, sure]), ROWS, ACCURACY).chosen].groups == "alone"
    tuned = sure + np.array([-0.03, 0.02, -0.02, 0.02])
    assert worth([0, 1, 4], np.stack([one, tuned, sure]), ROWS, ACCURACY).chosen == 1


def test_the_metric_says_which_way_is_better():
    """Of errors the lower ones are taken, and the worst client is the one with the largest."""
    found = worth([0, 2], np.array([[4.0, 5.0, 6.0, 7.0], [1.0, 2.0, 3.0, 4.5]]), ROWS, RMSE)
    assert PLANS[found.chosen].groups == "clusters"
    assert found.gain == pytest.approx(2.875)
    assert found.plans[1].worst == 4.5
    assert advice(found, 3, RMSE) == (
        "3 clusters: in a short trial clients scored 2.875 better than with one model"
        " (p < 0.001, paired over 4 clients)")


def test_who_defines_no_score_is_left_out():
    """A client whose rows do not define the metric, and one without validation rows, count for nothing."""
    scores = np.array([[0.5, np.nan, 0.5, 0.5], [0.9, 0.9, 0.9, 0.1]])
    found = worth([0, 1], scores, np.array([15, 10, 15, 0]), ACCURACY)
    assert (found.over, found.rows, found.chosen) == (2, 30, 1)
    assert found.gain == pytest.approx(0.4)


def test_too_few_rows_decide_nothing():
    """The simplest plan, in a sentence that says why."""
    found = worth([0, 1], np.array([[0.1] * 4, [0.9] * 4]), np.full(4, 4), ACCURACY)
    assert found.plans == ()
    assert advice(found, 1, ACCURACY) == (
        "too few validation rows (16) to say which plan is worth more, so the simplest one: one model")
    assert worth([0, 1], np.full((2, 4), np.nan), ROWS, ACCURACY).plans == ()


def test_what_could_be_chance_is_said():
    """The best plan is taken, and its p-value with it."""
    one = np.array([0.5, 0.6, 0.7, 0.8])
    found = worth([0, 3], np.stack([one, one + np.array([0.4, -0.1, 0.3, 0.0])]), ROWS, ACCURACY)
    assert not found.differs
    assert advice(found, 2, ACCURACY) == (
        "2 clusters, fine-tuned: in a short trial clients scored 15.0 points better than with one model, which could be"
        " chance (p = 0.30, paired over 4 clients)")
