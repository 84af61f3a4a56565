"""What of an answer is believed: ranges, by what else it says and by what the server knows of its sender."""

import pytest
import torch
from helpers import ENGINES, SEED, SIZES, tampered, tiny_model, tiny_population

from umbel import tree
from umbel.algorithms.fednova import counted_train
from umbel.clustering.parts import distinct_counts
from umbel.clustering.signatures import class_counts, class_vectors, principal_vectors, votes
from umbel.data.clients import Work
from umbel.federation.belief import doubts
from umbel.federation.door import Cohort
from umbel.federation.scoring import score
from umbel.federation.tasks import Leaf, Of
from umbel.federation.training import train
from umbel.nets.objective import Classify, NextToken, Regress

engines = pytest.mark.parametrize("engine", ENGINES)
EVERYBODY = torch.arange(len(SIZES))


def asked(engine, task, change, rows="train", **given):
    """All six do a task, and c001, which has 20 training rows and 10 for tests, sends what `change` makes of it."""
    fed = tampered(ENGINES[engine](tiny_model(), tiny_population(), SEED), lambda call, send: {**send, **change(send)},
                   "c001")
    fed.arrive(0)
    models = {"models": tree.stack([fed.net.init(0)] * 2)} if task is votes else {}
    models |= {"model": fed.net.init(0)} if task in (score, train, counted_train) else {}
    return (fed.testing() if rows == "test" else fed).map(
        task, Cohort(EVERYBODY, 0), work=Work(epochs=2, batch=5, rows=rows), shared=models, **given)


def to(name, number):
    """A change of one leaf, all of whose numbers become this one."""
    return lambda send: {name: torch.full_like(send[name], number)}


CASES = {  # a task and what is asked of it; what is changed; why that is not believed, "" = it is
    "more hits than rows": (score, {"rows": "test"}, to("hits", 10**9), "hits is above size"),
    "more rows than there are": (score, {"rows": "test"}, to("size", 11), "size is above the rows told"),
    "as many hits as rows": (score, {"rows": "test"}, to("hits", 10), ""),
    "hits below 0": (score, {"rows": "test"}, to("hits", -1), "hits is below 0"),
    "a loss beyond all": (score, {"rows": "test"}, to("loss", 1e200), "loss is above 1e+150"),
    "a size that takes over": (train, {"lr": 0.1}, to("size", 2**62), "size is above the rows told"),
    "a row too many": (train, {"lr": 0.1}, to("size", 21), "size is above the rows told"),
    "rows as told": (train, {"lr": 0.1}, to("size", 20), ""),
    "a step too many": (counted_train, {"lr": 0.1}, to("steps", 9), "steps is above the steps asked for"),
    "steps as asked": (counted_train, {"lr": 0.1}, to("steps", 8), ""),
    "votes of none": (votes, {"k": 2}, to("votes", -3), "votes is below 0"),
    "more votes than rows": (votes, {"k": 2}, to("votes", 11), "votes adds up to more than size"),
    "votes that run over": (votes, {"k": 2}, to("votes", 2**62), "votes adds up to more than size"),
    "more of all classes than rows": (class_counts, {}, to("counts", 7), "counts adds up to more than the rows told"),
    "more kinds than rows": (distinct_counts, {}, to("counts", 7), "counts adds up to more than the rows told"),
    "a class that is none": (class_vectors, {"rank": 1}, to("basis_class", 3), "basis_class is above 2"),
    "a class where all are one": (principal_vectors, {"rank": 1}, to("basis_class", 0), "basis_class is above -1"),
    "no unit vectors": (class_vectors, {"rank": 1}, to("basis", 2.0), "basis is above 1.01"),
}


@engines
@pytest.mark.parametrize("case", CASES)
def test_counts_have_ranges(engine, case):
    """By what else an answer says, by what its sender told and was asked for: on every engine the same."""
    task, given, change, reason = CASES[case]
    heard = asked(engine, task, change, **given)
    assert heard.lost == ({"c001": reason} if reason else {})
    assert heard.ids.tolist() == ([0, 2, 3, 4, 5] if reason else EVERYBODY.tolist())


def test_a_row_of_text_has_more_tokens_than_one():
    """Of 2 rows of 3 tokens 6 may be right, and 7 not; of 5 tokens that are told, no more than 5."""
    leaves = {name: Leaf((), torch.float64, most=Of(*NextToken(4, length=3).counts[name])) for name in ("right",
                                                                                                        "tokens")}
    send = {"right": torch.tensor([6.0, 6.0, 7.0, 6.0]), "tokens": torch.tensor([6.0, 5.0, 7.0, 6.0]),
            "size": torch.tensor([2, 2, 2, 2])}
    assert doubts(send, leaves, {}) == {1: "right is above tokens", 2: "tokens is above 3 times size"}


def test_no_more_rows_of_a_class_are_right_than_there_are_of_it():
    """Each line adds up to no more than the rows, and still they can contradict each other."""
    goal = Classify(2, judged_by="macro_f1")
    right = torch.tensor([[[1.0, 2.0], [1.0, 3.0], [2.0, 2.0]], [[2.0, 2.0], [1.0, 3.0], [2.0, 2.0]]])
    assert goal.agrees("by_class", right).flatten(1).all(1).tolist() == [True, False]
    assert Regress().counts == {}


def test_the_first_reason_counts_and_all_rows_are_looked_at():
    """A NaN is no number out of range; of three rows the first and the last are wrong, each in its own way."""
    send = {"x": torch.tensor([torch.nan, 1.0, 3.0]), "n": torch.tensor([5, 1, 1])}
    assert doubts(send, {"x": Leaf(most=2), "n": Leaf((), torch.int64, most=Of("known"))},
                  {"known": torch.tensor([1, 1, 1])}) == {0: "not finite", 2: "x is above 2"}
