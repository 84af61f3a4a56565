"""How answers become one: mean, median, trimmed mean and Krum, held against what numpy makes of tiny arrays."""

import numpy as np
import pytest
import torch
from helpers import ENGINES, LOCAL, SEED, TRUTH, gap, play, tampered, tiny_model, tiny_population

import umbel as u
from umbel import tree
from umbel.algorithms.aggregates import AGGREGATES, false_ones
from umbel.runs.run import rounds

ROBUST = ("median", "trimmed", "krum")
LABELS = torch.tensor([0, 2, 0, 0, 2, 0, 0])  # nobody holds 1
SIZE = torch.tensor([5, 1, 1, 2, 3, 9, 0])  # the last has no rows
X = torch.tensor([[1.0, 8.0], [2.0, 2.0], [3.0, 6.0], [2.0, 7.0], [4.0, 0.0], [90.0, -90.0], [1e9, 1e9]])
OLD = torch.tensor([[-1.0, -1.0], [-2.0, -2.0], [-3.0, -3.0]])


def literal_krum(x, f):
    """Blanchard et al., Sec. 4, in loops."""
    scores = []
    for i, own in enumerate(x):
        near = sorted(((own - other) ** 2).sum() for j, other in enumerate(x) if j != i)
        scores.append(sum(near[: max(1, len(x) - f - 2)]))
    return x[int(np.argmin(scores))]


def made(name, faulty=0.25):
    """Models of the three labels, of two layers that are the two columns of X."""
    one = AGGREGATES[name]({"a": X[:, :1], "b": X[:, 1:]}, LABELS, SIZE, {"a": OLD[:, :1], "b": OLD[:, 1:]}, faulty)
    return torch.cat([one["a"], one["b"]], 1).tolist()


def test_a_median_is_taken_number_by_number():
    """Of 1, 3, 2, 90 it is 2.5, of 8, 6, 7, -90 it is 6.5; of two the mean, whatever their sizes; of none the old."""
    assert made("median") == [[2.5, 6.5], [-2.0, -2.0], [3.0, 1.0]]


def test_a_trimmed_mean_leaves_out_as_many_at_either_end():
    """A quarter of four is one: of 1, 2, 3, 90 are left 2 and 3, of -90, 6, 7, 8 are left 6 and 7."""
    assert made("trimmed") == [[2.5, 6.5], [-2.0, -2.0], [3.0, 1.0]]
    x = torch.tensor([[1.0], [5.0], [100.0], [2.0], [-7.0], [3.0]])
    for faulty, mean in ((0.0, 104 / 6), (0.2, 11 / 4), (0.4, 5 / 2)):
        one = AGGREGATES["trimmed"]({"a": x}, torch.zeros(6, dtype=torch.long), torch.ones(6), {"a": x[:1]}, faulty)
        assert float(one["a"]) == pytest.approx(mean)


def test_krum_takes_one_answer_whole():
    """With one false of four by the nearest other: (1, 8), (3, 6), (2, 7) are as near, and the first counts."""
    assert made("krum") == [[1.0, 8.0], [-2.0, -2.0], [3.0, 1.0]]
    rng = np.random.default_rng(0)
    for m, faulty in ((3, 0.2), (5, 0.2), (8, 0.3), (11, 0.45), (6, 0.0)):
        x = rng.normal(size=(m, 4)).astype(np.float32)
        one = AGGREGATES["krum"]({"a": torch.from_numpy(x)}, torch.zeros(m, dtype=torch.long), torch.ones(m),
                                 {"a": torch.zeros(1, 4)}, faulty)
        assert np.array_equal(one["a"][0].numpy(), literal_krum(x, false_ones(m, faulty)))


def test_how_many_may_be_false():
    """The share, one at least of three, and fewer than half; none where none may be."""
    assert [false_ones(m, 0.2) for m in (1, 2, 3, 4, 5, 9, 10, 15)] == [0, 0, 1, 1, 1, 1, 2, 3]
    assert [false_ones(m, 0.49) for m in (2, 3, 4, 5, 100)] == [0, 1, 1, 2, 49]
    assert false_ones(100, 0.0) == 0
    assert false_ones(100, 0.29) == 29  # 0.29 * 100 is a little less than 29


@pytest.mark.parametrize("name", ROBUST)
def test_an_answer_of_any_size_moves_them_no_further_than_the_honest_ones_reach(name):
    """The fourth of label 0 sends 1e30: each number stays between the others' least and largest."""
    x = X.clone()
    x[5] = 1e30
    one = AGGREGATES[name]({"a": x}, LABELS, SIZE, {"a": OLD}, 0.25)["a"][0]
    assert bool(((one >= torch.tensor([1.0, 6.0])) & (one <= torch.tensor([3.0, 8.0]))).all())


@pytest.mark.parametrize("name", ROBUST)
def test_engines_agree(name):
    """Answers are the same, so models are, within the rounding of a stacked engine; and they are not the mean's."""
    def end(engine, aggregate=name):
        fed = ENGINES[engine](tiny_model(), tiny_population(), SEED)
        return play(u.Oracle(TRUTH, aggregate=aggregate, local=LOCAL), fed).models

    loop = end("loop")
    for engine in ("simulator", "chunked", "one-by-one", "flower"):
        assert gap(loop, end(engine)) < 1e-5
    assert gap(loop, end("loop", "mean")) > 1e-3


@pytest.mark.parametrize("name", ROBUST)
def test_what_a_round_makes_of_answers_is_the_rules(name):
    """FedSEM's centres too: of two rounds each, the model is the rule's of what clients sent in the last."""
    for method in (u.FedAvg(aggregate=name, local=LOCAL), u.FedSEM(1, aggregate=name, local=LOCAL)):
        told = {}

        def note(call, send, told=told):
            told[call.cohort.round, float(call.cohort.ids[0])] = send
            told.setdefault(call.cohort.round, []).append(send)
            return send

        fed = tampered(ENGINES["loop"](tiny_model(), tiny_population(), SEED), note)
        state = play(method, fed, rounds=2)
        sent = tree.cat(told[1])
        one = AGGREGATES[name](sent["model"], torch.zeros(6, dtype=torch.long), torch.ones(6), state.models, 0.2)
        assert all(torch.equal(leaf, state.models[layer]) for layer, leaf in one.items())


def test_methods_that_do_not_average_so_refuse():
    """One sentence, with the reason; a rule's name that is none too."""
    for method in (u.Scaffold, u.FedNova, u.FedSoft):
        with pytest.raises(u.UmbelError, match=r"The 'aggregate' of \w+ must be mean, since .*\. Got krum instead\."):
            method(aggregate="krum")
    with pytest.raises(u.UmbelError, match="must be 'mean' or 'median' or 'trimmed' or 'krum'"):
        u.FedAvg(aggregate="modal")


@pytest.mark.parametrize("name", ROBUST)
def test_one_of_three_does_not_decide(name):
    """c002 sends its model with the opposite sign, below any bound: the others' cluster is served as without it."""
    def flipped(call, send):
        if call.cohort.phase != "train":
            return send
        return {**send, "model": tree.each(torch.neg, send["model"])}

    def score(change, aggregate):
        fed = ENGINES["loop"](tiny_model(), tiny_population(), SEED)
        method = u.Oracle(TRUTH, aggregate=aggregate, local=LOCAL)
        return list(rounds(method, tampered(fed, change, "c002"), rounds=6, fine_tune=0))[-1].score

    assert score(flipped, name) >= score(lambda call, send: send, "mean") - 0.05
