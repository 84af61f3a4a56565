"""Which updates are too long to be believed."""

import pytest
import torch
from helpers import ENGINES, SEED, SIZES, tampered, tiny_model, tiny_population

from umbel import tree
from umbel.data.clients import Work
from umbel.errors import UmbelError
from umbel.federation.door import Answered, Call, Cohort
from umbel.federation.lengths import BOUND, Lengths
from umbel.federation.tasks import Leaf, Plain
from umbel.federation.training import train
from umbel.runs.options import RunOptions
from umbel.tree import Held

engines = pytest.mark.parametrize("engine", ENGINES)
LAYER = {"model": {"w": Leaf((2,))}}
NOTHING = Plain("nothing_at_all", lambda net, client: None)


def too_long(sent, starts, of=None, bound=10.0, expected=LAYER, statistics=()):
    """Whose answers (two numbers each) are too long; `starts` are one model, or several that `of` hands out."""
    starts, sent = torch.tensor(starts), torch.tensor(sent)
    each = {"model": Held({"w": starts}, torch.tensor(of))} if of else {}
    shared = {} if of else {"model": {"w": starts}}
    call = Call(NOTHING, Cohort(torch.arange(len(sent)), 0), Work(), shared, each, {})
    lengths = Lengths(call, expected, statistics)
    for part in torch.arange(len(sent)).split(2):  # in chunks, as engines answer
        lengths.measure(Answered(part, {"model": {"w": sent[part]}}))
    return sorted(lengths.too_long(torch.ones(len(sent), dtype=torch.bool), bound))


def test_an_update_is_held_against_the_median_of_those_who_were_sent_the_same():
    """From (3, 4) by 1, 2, 1 and 10 times 1: the median is 1; 10.1 is too long, and 10 is not."""
    def sent(last):
        return [[4.0, 4.0], [3.0, 6.0], [3.0, 3.0], [3.0 + last, 4.0]]

    assert too_long(sent(10.0), [3.0, 4.0]) == []
    assert too_long(sent(10.1), [3.0, 4.0]) == [3]
    assert too_long(sent(10.1), [3.0, 4.0], bound=11) == []


def test_who_takes_more_steps_may_go_farther():
    """With 50 times the steps of the median client an update may be 50 times as long; with fewer still 10 times."""
    call = Call(NOTHING, Cohort(torch.arange(5), 0), Work(), {"model": {"w": torch.zeros(1)}}, {}, {})
    lengths = Lengths(call, {"model": {"w": Leaf((1,))}}, (), torch.tensor([2, 2, 2, 100, 1]))
    for far, near, wrong in ((49.0, 9.0, {}), (51.0, 11.0, {3: "update more than 50 times as long as usual",
                                                           4: "update more than 10 times as long as usual"})):
        sent = torch.tensor([1.0, 1.0, 1.0, far, near])[:, None]
        lengths.of.clear()
        lengths.measure(Answered(torch.arange(5), {"model": {"w": sent}}))
        assert lengths.too_long(torch.ones(5, dtype=torch.bool), 10.0) == wrong


def test_clusters_have_medians_of_their_own():
    """Updates of 1 and of 100 in two clusters of three: 20 is too long in the first and short in the second."""
    starts, of = [[0.0, 0.0], [50.0, 0.0]], [0, 1, 0, 1, 0, 1]
    sent = [[1.0, 0.0], [150.0, 0.0], [0.0, 1.0], [50.0, 100.0], [0.0, 20.0], [70.0, 0.0]]
    assert too_long(sent, starts, of) == [4]


def test_a_cluster_of_two_is_held_against_its_model_or_everybody():
    """Its own median would be the shorter of the two. Here the median of all five is 1, its model's length 5 or 0.5."""
    starts, of = [[0.0, 0.0], [5.0, 0.0]], [0, 0, 0, 1, 1]
    assert too_long([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [5.05, 0.0], [54.0, 0.0]], starts, of) == []
    assert too_long([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [5.05, 0.0], [56.0, 0.0]], starts, of) == [4]
    starts = [[0.0, 0.0], [0.5, 0.0]]
    assert too_long([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.55, 0.0], [10.0, 0.0]], starts, of) == []
    assert too_long([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.55, 0.0], [11.0, 0.0]], starts, of) == [4]


def test_of_one_or_two_the_model_that_was_sent_is_the_measure():
    """A model of length 5: an update of 50 may be, one of 51 may not, and 1e30 may never be."""
    assert too_long([[3.0, 54.0]], [3.0, 4.0]) == []
    assert too_long([[3.0, 55.0]], [3.0, 4.0]) == [0]
    assert too_long([[3.0, 5.0], [1e30, 4.0]], [3.0, 4.0]) == [1]
    assert too_long([[9.0, 9.0]], [0.0, 0.0]) == []  # a model of zeros measures nothing


def test_those_who_did_not_move_set_no_measure():
    """Three of five have no rows to train on: the median is of the others, and of two it is the model's length."""
    assert too_long([[3.0, 4.0]] * 3 + [[3.0, 5.0], [3.0, 10.0]], [3.0, 4.0]) == []
    assert too_long([[3.0, 4.0]] * 3 + [[3.0, 5.0]] * 3 + [[3.0, 15.0]], [3.0, 4.0]) == [6]


def test_what_overflows_is_too_long_even_if_most_do():
    """Lengths that are no number are no measure: two of three send 1e30."""
    assert too_long([[1e30, 0.0], [3.0, 5.0], [0.0, 1e30]], [3.0, 4.0]) == [0, 2]


def test_what_answers_no_model_is_measured_from_zero():
    """A control variate, say, of which three times as much may be; running statistics have a length of their own."""
    cohort = Cohort(torch.arange(4), 0)
    shared = {"model": {"w": torch.zeros(1), "mean": torch.zeros(1)}}
    call = Call(NOTHING, cohort, Work(), shared, {}, {})
    lengths = Lengths(call, {"model": {"w": Leaf((1,)), "mean": Leaf((1,))}, "control": {"w": Leaf((1,))},
                             "size": Leaf()}, ("mean",))
    ones = torch.ones(4, 1)
    far = [torch.where(torch.arange(4)[:, None] == k, long, ones) for k, long in enumerate((11.0, 11.0, 31.0))]
    lengths.measure(Answered(cohort.ids, {"model": {"w": far[0], "mean": far[1]}, "control": {"w": far[2]},
                                          "size": ones[:, 0]}))
    assert lengths.too_long(torch.ones(4, dtype=torch.bool), 10.0) == {
        0: "update more than 10 times as long as usual", 1: "running statistics more than 10 times as long as usual",
        2: "control more than 30 times as long as usual"}


@engines
@pytest.mark.parametrize("held", [False, True])
def test_a_long_update_is_left_out_on_every_engine(engine, held):
    """c003's update times a hundred: it is named, and the others' answers are what they were."""
    def asked(fed):
        fed.arrive(0)
        model = fed.net.init(0)
        given = {"each": {"model": Held(tree.stack([model, model]), torch.tensor([0, 1, 0, 1, 0, 1]))}} if held else \
            {"shared": {"model": model}}
        return fed.map(train, Cohort(torch.arange(len(SIZES)), 0), work=Work(epochs=2, batch=5), lr=0.1, **given)

    def scaled(call, send):
        start = tree.stack([tiny_model().init(0)])
        return {**send, "model": tree.each(lambda new, old: old + 100 * (new - old), send["model"], start)}

    def fed():
        return ENGINES[engine](tiny_model(), tiny_population(), SEED)

    honest, heard = asked(fed()), asked(tampered(fed(), scaled, "c003"))
    assert heard.lost == {"c003": "update more than 10 times as long as usual"}
    assert honest.lost == {}
    there = torch.tensor([0, 1, 2, 4, 5])
    assert heard.ids.tolist() == there.tolist()
    assert all(torch.equal(leaf[there], heard.answers["model"][name])
               for name, leaf in honest.answers["model"].items())


def test_a_bound_leaves_room_for_honest_updates_or_there_is_none():
    """Half the updates are longer than the median: a bound of 1 is a slip."""
    assert RunOptions().bound == BOUND
    assert RunOptions(bound=0).bound == 0
    with pytest.raises(UmbelError, match=r"at least 2 times the usual length, .* or 0 for none\. Got 1 instead"):
        RunOptions(bound=1)
