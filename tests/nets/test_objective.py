"""What a model is for: metrics against scikit-learn, and sums of parts against sums of the whole."""

import warnings

import numpy as np
import pytest
import torch
from sklearn import metrics as reference

from umbel import UmbelError
from umbel.nets.objective import ACCURACY, BINS, METRICS, Classify, Metric, NextToken, Regress, judged, objective_of


def summed(objective, out, y):
    """The metrics of some rows."""
    return objective.summary(objective.tally(objective.row_values(out, y)), len(y))


def pooled(objective, out, y, sites):
    """The same from the sums of several sites, each of which sees its own rows."""
    parts = [objective.tally(objective.row_values(out[rows], y[rows])) for rows in sites]
    return objective.summary({name: sum(part[name] for part in parts) for name in parts[0]}, len(y))


def splits(y, seed=0):
    """Random sites, and sites that hold one kind of target each."""
    drawn = torch.from_numpy(np.random.default_rng(seed).integers(0, 4, len(y)))
    return [[(drawn == k).nonzero().flatten() for k in range(4)], list(y.argsort().split(len(y) // 5 + 1)),
            [(y == kind).nonzero().flatten() for kind in y.unique()]]


# Metric


def test_a_share_is_said_in_per_cent_and_a_number_by_four_digits():
    """Percent where the unit is one; other numbers with four significant digits, and never as 1e+05."""
    assert (ACCURACY.shown(0.98765), ACCURACY.shown(0.98765, 1), ACCURACY.said(0.5)) == ("98.77", "98.8", "50.00 %")
    error = Metric("MAE", "mg", False)
    assert [error.shown(value) for value in (43.21987, 0.0123456, 9999.7, 123456.7, -3.0, 0.0)] == [
        "43.22", "0.01235", "10000", "123457", "-3.000", "0.000"]
    assert (error.said(43.21987), error.shown(None), error.spread(None), error.spread(2.0)) == (
        "43.22 mg", "–", "", " ± 2.000")
    assert error.said(0.6) == "0.6 mg"
    assert (error.axis, error.caption, ACCURACY.axis, ACCURACY.caption) == (
        "MAE, mg", "MAE in mg (lower is better)", "accuracy, %", "Accuracy in %")


def test_better_and_gain_follow_the_metric():
    """Of errors the lower one is better; equal ones are not."""
    error = METRICS["mae"]
    assert [ACCURACY.better(*pair) for pair in ((0.6, 0.5), (0.5, 0.6), (0.5, 0.5))] == [True, False, False]
    assert [error.better(*pair) for pair in ((0.6, 0.5), (0.5, 0.6), (0.5, 0.5))] == [False, True, False]
    assert (ACCURACY.gain(3.0, 1.0), error.gain(3.0, 1.0)) == (2.0, -2.0)


# Classification


def test_classes_by_hand():
    """Six rows, three classes: 4 of 6 right; recalls 2/3, 1, 1/2; F1 4/5, 2/3, 1/2."""
    y = torch.tensor([0, 0, 0, 1, 2, 2])
    guess = torch.tensor([0, 0, 2, 1, 2, 1])
    found = summed(Classify(3, judged_by="macro_f1"), torch.eye(3)[guess], y)
    assert found == pytest.approx({"accuracy": 4 / 6, "balanced_accuracy": (2 / 3 + 1 + 1 / 2) / 3,
                                   "macro_f1": (4 / 5 + 2 / 3 + 1 / 2) / 3})


@pytest.mark.parametrize("classes", [2, 5])
def test_classes_equal_scikit_learn(classes):
    """Accuracy, balanced accuracy and macro F1 exactly; AUC of binned scores within 0.01."""
    rng = torch.Generator().manual_seed(classes)
    out, y = torch.randn(400, classes, generator=rng), torch.randint(classes, (400,), generator=rng)
    out[torch.arange(400), y] += 1.0
    found = summed(Classify(classes, judged_by="auc"), out, y)
    guess, chance = out.argmax(1).numpy(), out.softmax(1).numpy()
    area = (reference.roc_auc_score(y, chance[:, 1]) if classes == 2
            else reference.roc_auc_score(y, chance, multi_class="ovr", average="macro"))
    assert found == pytest.approx({
        "accuracy": reference.accuracy_score(y, guess),
        "balanced_accuracy": reference.balanced_accuracy_score(y, guess),
        "macro_f1": reference.f1_score(y, guess, average="macro"), "auc": found["auc"]})
    assert found["auc"] == pytest.approx(area, abs=0.01)


def test_auc_is_exact_where_scores_are_as_coarse_as_the_bins():
    """Ties count half, as in scikit-learn; a model that knows nothing has 0.5."""
    rng = np.random.default_rng(0)
    chance = (rng.integers(40, 88, 300) + 0.5) / BINS
    y = rng.integers(0, 2, 300)
    out = torch.from_numpy(np.stack([1 - chance, chance], 1)).log()
    objective = Classify(2, judged_by="auc")
    found = summed(objective, out, torch.from_numpy(y))["auc"]
    assert found == pytest.approx(reference.roc_auc_score(y, chance), abs=1e-12)
    assert summed(objective, torch.zeros(4, 2), torch.tensor([0, 1, 0, 1]))["auc"] == 0.5


def test_classes_that_are_not_there_do_not_count():
    """Balanced accuracy and macro F1 are means over the classes of the rows, whatever else was guessed."""
    y, guess = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 3, 1, 1])
    found = summed(Classify(4, judged_by="auc"), torch.eye(4)[guess] * 3, y)
    with warnings.catch_warnings(action="ignore"):  # of guesses that are no class of the rows
        assert found["balanced_accuracy"] == pytest.approx(reference.balanced_accuracy_score(y, guess))
    assert found["macro_f1"] == pytest.approx(reference.f1_score(y, guess, labels=[0, 1], average="macro"))


def test_one_class_defines_no_auc():
    """A site of one class has no AUC, and an accuracy."""
    objective = Classify(2, judged_by="auc")
    found = summed(objective, torch.eye(2)[[0, 1, 1]], torch.tensor([1, 1, 1]))
    assert found["auc"] is None is judged(objective, found)
    assert found["accuracy"] == pytest.approx(2 / 3)


@pytest.mark.parametrize("judge", ["accuracy", "balanced_accuracy", "macro_f1", "auc"])
def test_classes_pooled_from_sites_equal_the_whole(judge):
    """Whatever the split, sites of one class alone included; 50 drawn cases."""
    for seed in range(50):
        rng = torch.Generator().manual_seed(seed)
        objective = Classify(3, judged_by=judge)
        out, y = torch.randn(40, 3, generator=rng), torch.randint(3, (40,), generator=rng)
        whole = summed(objective, out, y)
        for sites in splits(y, seed):
            assert pooled(objective, out, y, sites) == pytest.approx(whole, abs=1e-12)


# Regression


@pytest.mark.parametrize("columns", [1, 3])
def test_numbers_equal_scikit_learn(columns):
    """MAE, RMSE and R2 in the target's own unit, however the outputs are scaled."""
    rng = np.random.default_rng(columns)
    y = rng.normal(150, 70, (200, columns)).astype(np.float32)
    guess = y + rng.normal(5, 30, y.shape)
    objective = Regress(columns=columns, centre=152.0, scale=77.0)
    out = torch.from_numpy((guess - 152) / 77)
    found = summed(objective, out, torch.from_numpy(y if columns > 1 else y[:, 0]))
    assert found == pytest.approx({
        "mae": reference.mean_absolute_error(y, guess), "rmse": reference.mean_squared_error(y, guess) ** 0.5,
        "r2": reference.r2_score(y, guess, multioutput="variance_weighted")}, rel=1e-5)


def test_numbers_by_hand():
    """Errors 10, -20 and 0 of targets 0, 10 and 20: MAE 10, RMSE sqrt(500 / 3), R2 1 - 500 / 200."""
    out, y = torch.tensor([[1.0], [-1.0], [2.0]]), torch.tensor([0.0, 10.0, 20.0])
    found = summed(Regress(scale=10.0), out, y)
    assert found == pytest.approx({"mae": 10.0, "rmse": (500 / 3) ** 0.5, "r2": -1.5})


def test_equal_targets_define_no_r2():
    """No spread, nothing to explain: None, and not a large negative number by rounding."""
    found = summed(Regress(judged_by="r2"), torch.zeros(7, 1), torch.full((7,), 0.1))
    assert found["r2"] is None
    assert found["mae"] == pytest.approx(0.1)


def test_numbers_pooled_from_sites_equal_the_whole():
    """Whatever the split, sites with one target each included; 50 drawn cases."""
    objective = Regress(centre=3.0, scale=2.0)
    for seed in range(50):
        rng = torch.Generator().manual_seed(seed)
        out, y = torch.randn(40, 1, generator=rng), torch.randint(5, (40,), generator=rng).float()
        whole = summed(objective, out, y)
        for sites in splits(y, seed):
            assert pooled(objective, out, y, sites) == pytest.approx(whole, abs=1e-12)


@pytest.mark.parametrize(("objective", "out", "y"), [
    (Regress(scale=10.0), torch.tensor([[float("nan")], [float("inf")]]), torch.zeros(2)),
    (NextToken(4), torch.full((2, 4), float("nan")), torch.tensor([1, 2])),
])
def test_a_model_that_gives_no_numbers_is_scored_and_fails(objective, out, y):
    """Its sums are finite, so that the door lets them in, and its errors are enormous."""
    sums = objective.tally(objective.row_values(out, y))
    assert all(bool(leaf.isfinite().all()) for leaf in sums.values())
    found = objective.summary(sums, 2)
    assert found.get("mae", found.get("perplexity")) >= 1e6


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_outputs_that_are_no_numbers_are_taken_for_no_class(value):
    """Of four rows of class 0 and one of class 1, three of class 0 have an output that is none: one row in five is
    missed by argmax alone, four are here. Nothing else is counted: class 1 is not taken for anything it is not."""
    objective = Classify(2, judged_by="auc")
    out = torch.tensor([[2.0, 0.0], [value, 0.0], [0.0, value], [value, value], [0.0, 2.0]])
    sums = objective.tally(objective.row_values(out, torch.tensor([0, 0, 0, 0, 1])))
    assert float(sums["hits"]) == 2
    assert sums["by_class"].tolist() == [[1, 1], [4, 1], [1, 1]]
    found = objective.summary(sums, 5)
    assert found == pytest.approx({"accuracy": 2 / 5, "balanced_accuracy": (1 / 4 + 1) / 2,
                                   "macro_f1": (2 / 5 + 1) / 2, "auc": 1 / 4})


@pytest.mark.parametrize("judge", ["accuracy", "balanced_accuracy", "macro_f1", "auc"])
def test_a_model_of_no_numbers_has_no_share_of_anything(judge):
    """Also where every row is of class 0, which argmax takes them all for."""
    objective = Classify(3, judged_by=judge)
    for y in (torch.zeros(4, dtype=torch.int64), torch.tensor([0, 1, 2, 0])):
        found = summed(objective, torch.full((4, 3), torch.nan), y)
        assert {value for value in found.values() if value is not None} == {0.0}, found


def test_a_token_is_foretold_by_numbers_alone():
    """Token 0 is the first place of a row of NaN; of the two rows one is foretold."""
    out = torch.tensor([[torch.nan, torch.nan], [3.0, 1.0]])
    assert summed(NextToken(2), out, torch.tensor([0, 0]))["token_accuracy"] == 0.5


# Tokens


def test_tokens_by_hand():
    """Three tokens with probabilities 1/2, 1/4 and 1/8, one of them foretold: perplexity 4. Padding counts nowhere."""
    chance = torch.tensor([[[0.5, 0.3, 0.2], [0.7, 0.25, 0.05]], [[0.8, 0.125, 0.075], [1 / 3, 1 / 3, 1 / 3]]])
    y = torch.tensor([[0, 1], [1, -1]])
    objective = NextToken(3, length=2)
    found = summed(objective, chance.log(), y)
    assert found == pytest.approx({"token_accuracy": 1 / 3, "perplexity": 4.0})
    for sites in ([torch.tensor([0]), torch.tensor([1])], [torch.tensor([1, 0])]):
        assert pooled(objective, chance.log(), y, sites) == pytest.approx(found)
    assert summed(objective, chance.log(), torch.full((2, 2), -1)) == {"token_accuracy": None, "perplexity": None}


# What is chosen


def test_every_metric_of_an_objective_can_be_the_judge():
    """All names of metrics are some objective's; what is judged is the figure of that name; another's is refused."""
    objectives = (Classify(2), Regress(), NextToken(3))
    assert [name for each in objectives for name in each.metrics] == list(METRICS)
    for objective in objectives:
        for name in objective.metrics:
            chosen = objective.judged_as(name)
            assert (type(chosen), chosen.metric.name) == (type(objective), METRICS[name].name)
            assert judged(chosen, dict.fromkeys(objective.metrics, 1.0) | {name: 2.0}) == 2.0
    with pytest.raises(UmbelError) as error:
        NextToken(3).judged_as("accuracy")
    assert str(error.value) == ("The metric of the objective 'next_token' must be token_accuracy or perplexity. Got"
                                " 'accuracy' instead.")


def test_of_perplexities_the_lower_one_is_better():
    """And the run that foretells like a coin has 2."""
    objective = NextToken(2, judged_by="perplexity")
    assert objective.metric.better(2.0, 3.0)
    assert judged(objective, summed(objective, torch.zeros(4, 2), torch.tensor([0, 1, 1, -1]))) == pytest.approx(2.0)


def test_weights_multiply_the_loss_of_their_class():
    """Rows of class 1 count four times; what is judged stays, and so does a loss without weights."""
    out, y = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 1, 1, 0])
    plain, weighed = Classify(3), Classify(3, weights=(1, 4, 0.5))
    factor = torch.tensor([1, 4, 0.5, 4, 4, 1])
    assert torch.equal(weighed.row_loss(out, y), plain.row_loss(out, y) * factor)
    live = torch.tensor([True, True, False, True, False, True])
    expected = (plain.row_loss(out, y) * factor)[live].mean()
    for many in (False, True):
        assert torch.allclose(weighed.mean_loss(out, y, live, many=many), expected)
    assert summed(weighed, out, y) == summed(plain, out, y)


def test_balanced_weights_make_classes_count_alike():
    """Of 6, 3 and 1 rows each class has ten thirds in all; a class that is not there has none."""
    objective = Classify(4, weights="balanced")
    weights = objective.balanced(np.array([6, 3, 0, 1])).weights
    assert weights == pytest.approx((10 / 18, 10 / 9, 0, 10 / 3))
    assert Classify(2, weights=(1, 2)).balanced(np.array([5, 5])).weights == (1, 2)
    assert objective_of(Classify(2, weights=(1, 2)).described()) == Classify(2, weights=(1.0, 2.0))


@pytest.mark.parametrize("weights", [(1,), (1, 2, 3), (1, -1), (0, 0), (1, float("nan")), (1, float("inf")), "balance",
                                     5, ("a", "b")])
def test_weights_that_are_none_are_refused(weights):
    """One sentence with the rule."""
    with pytest.raises(UmbelError, match=r'The .weights. of a classification must be "balanced", or a number from 0'
                                         " for each of its 2 classes, not all 0"):
        Classify(2, weights=weights)


# What is foretold


def test_predictions_are_classes_names_numbers_or_tokens():
    """Each objective says it in the words of its targets."""
    out = torch.tensor([[0.1, 0.9], [0.8, 0.2]])
    assert Classify(2).predicted(out).tolist() == [1, 0]
    assert Classify(2, labels=("no", "yes")).predicted(out).tolist() == ["yes", "no"]
    assert Regress().predicted(torch.tensor([[1.5], [2.5]])).tolist() == [1.5, 2.5]
    assert Regress(columns=2).predicted(out).shape == (2, 2)
    assert NextToken(2, length=1).predicted(out[:, None]).tolist() == [[1], [0]]


def test_a_metric_that_is_not_accuracy_says_so():
    """In one sentence that names .score."""
    with pytest.raises(UmbelError, match=r"This one is judged by MAE: ask for its \.score\."):
        METRICS["mae"].must_be_accuracy()
    ACCURACY.must_be_accuracy()
