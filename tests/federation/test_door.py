"""The door: what it refuses, bills, pads and times."""

import itertools

import pytest
import torch
from helpers import ENGINES, LOCAL, SEED, SIZES, tiny_model, tiny_population
from threadpoolctl import ThreadpoolController
from torch import Tensor

from umbel import tree
from umbel.algorithms import FedAvg
from umbel.data.clients import Work
from umbel.engines import local
from umbel.errors import UmbelError
from umbel.federation import door
from umbel.federation.door import Cohort, NobodyAnswered, one_thread
from umbel.federation.tasks import TASKS, Client, Leaf, Loop, Plain, Reply, UpTo, register
from umbel.federation.training import train
from umbel.runs.run import rounds, sample

engines = pytest.mark.parametrize("engine", ENGINES)


def plain(name, function, answers):
    return TASKS.get(name) or register(Plain(name, function, answers))


def _held_labels(net, client: Client, **_) -> Reply:
    return Reply({"basis": torch.unique(client.y)[:, None].float(), "basis_class": torch.unique(client.y)})


held_labels = plain("held_labels", _held_labels, lambda net, **_: {
    "basis": Leaf((UpTo(3), 1)), "basis_class": Leaf((UpTo(3),), torch.int64)})
misshapen = plain("misshapen", lambda net, client: Reply({"x": client.y.float()}), lambda net: {"x": Leaf((2,))})
uneven = plain(
    "uneven", lambda net, client: Reply({"a": client.y[:2], "b": client.y[:1]}),
    lambda net: {"a": Leaf((UpTo(9),), torch.int64), "b": Leaf((UpTo(9),), torch.int64)})
far_apart = plain(  # of c005, which holds nine rows, infinities; of others, numbers whose sum is one
    "far_apart", lambda net, client: Reply({"x": torch.full((2,), 3e38) * (10 if len(client.y) == 9 else 1)}),
    lambda net: {"x": Leaf((2,))})
half_finite = plain(  # of c005 one number of two
    "half_finite", lambda net, client: Reply({"x": torch.tensor([1.0, torch.inf if len(client.y) == 9 else 2.0])}),
    lambda net: {"x": Leaf((2,))})
def _noted(net, client: Client, carry, fixed, *, sick="") -> Reply:
    """A note of 1, or of 2 where one is remembered; what is `sick` of it is infinite for c002, which has seven rows."""
    note = client.memory["note"] + 1
    bad = torch.where(client.size == SIZES[2], torch.inf, note)
    return Reply({"x": bad if sick == "sends" else note}, {"note": bad if sick == "keeps" else note})


noting = TASKS.get("noting") or register(Loop(
    "noting", lambda net, client, **_: ({"x": client.memory["note"]}, {}), lambda net, carry, fixed, batch, **_: carry,
    _noted, lambda net, **_: {"x": Leaf()}, lambda net, seed: {"note": torch.tensor(0.0)}, ("sick",)))
misnamed = plain("misnamed", lambda net, client: Reply({"y": client.size}), lambda net: {"x": Leaf()})


def fed_of(engine):
    return ENGINES[engine](tiny_model(), tiny_population(), SEED)


@engines
def test_ragged_answers_are_padded_and_billed_by_their_real_rows(engine):
    """Clients hold 3 labels (or fewer): lengths say how many rows count, bytes are those of the real rows."""
    people = tiny_population()
    people.pool.y[people.train[2]] = 1
    fed = ENGINES[engine](tiny_model(), people, SEED)
    heard = fed.map(held_labels, Cohort(torch.tensor([0, 2]), 0, "signature"))
    assert heard.answers["basis"].values.shape == (2, 3, 1)
    assert heard.answers["basis"].length.tolist() == [3, 1]
    assert heard.answers["basis"].values[1].flatten().tolist() == [1, 0, 0]
    assert [line.bytes for line in fed.ledger.lines if line.kind == "basis"] == [(12,), (4,)]


@engines
@pytest.mark.parametrize(("task", "reason"), [(misshapen, "x has shape"), (misnamed, "other names"),
                                               (uneven, "different lengths")])
def test_answers_that_are_not_as_promised_are_lost_with_the_reason(engine, task, reason):
    """A server believes nothing that the task did not promise; if nobody is left it says so."""
    fed = fed_of(engine)
    with pytest.raises(NobodyAnswered, match=reason):
        fed.map(task, Cohort(torch.tensor([0, 1]), 0))
    assert set(fed.lost) == {"c000", "c001"}


@engines
def test_large_numbers_are_believed_and_infinite_ones_are_not(engine):
    """Even where numbers are too large to be added up."""
    heard = fed_of(engine).map(far_apart, Cohort(torch.tensor([0, 5, 3]), 0))
    assert heard.ids.tolist() == [0, 3]
    assert heard.lost == {"c005": "not finite"}


@engines
def test_one_infinite_number_spoils_an_answer(engine):
    """An answer is believed whole or not at all: [1, inf] is not, [1, 2] is."""
    heard = fed_of(engine).map(half_finite, Cohort(torch.tensor([0, 5, 3]), 0))
    assert heard.answers["x"].tolist() == [[1, 2], [1, 2]]
    assert heard.lost == {"c005": "not finite"}


@engines
@pytest.mark.parametrize("sick", ["sends", "keeps"])
def test_who_is_not_believed_remembers_what_it_remembered(engine, sick):
    """A reply counts as a whole: of c002 neither the answer nor the note of round 1, and in round 2 it goes on."""
    fed = fed_of(engine)
    fed.arrive(0)
    told = [fed.map(noting, Cohort(torch.arange(6), round), work=Work(epochs=1), sick=sick if round == 1 else "")
            for round in range(3)]
    assert [heard.lost for heard in told] == [{}, {"c002": "not finite"}, {}]
    assert [heard.answers["x"].tolist() for heard in told] == [[1.0] * 6, [2.0] * 5, [3.0, 3.0, 2.0, 3.0, 3.0, 3.0]]
    assert [float(page["note"]) for _, page in sorted(fed.memory()[0].items())] == [3.0, 3.0, 2.0, 3.0, 3.0, 3.0]


@engines
def test_a_note_that_is_not_finite_is_not_written_for_a_first_time(engine):
    """Who remembers nothing goes on remembering nothing."""
    fed = fed_of(engine)
    fed.arrive(0)
    fed.map(noting, Cohort(torch.arange(6), 0), work=Work(epochs=1), sick="keeps")
    assert sorted(fed.memory()[0]) == ["c000", "c001", "c003", "c004", "c005"]


def test_an_option_that_a_task_does_not_have_is_refused():
    """A misspelt one would vanish without a word; nobody is asked."""
    fed = fed_of("loop")
    with pytest.raises(UmbelError, match=r"The task 'train' has no option 'momentun'\. Did you mean 'momentum'\?"):
        fed.map(train, Cohort(torch.tensor([0]), 0), shared={"model": fed.net.init(0)}, lr=0.1, momentun=0.5)
    assert fed.ledger.lines == []


def test_the_servers_own_time_is_without_what_clients_take(monkeypatch):
    """A clock that ticks once a look: from 0 to 3 in all, of which clients are asked from 1 to 2."""
    fed, ticks = fed_of("loop"), itertools.count()
    monkeypatch.setattr(door.time, "perf_counter", lambda: next(ticks))
    with fed.timing("clustering"):
        fed.map(held_labels, Cohort(torch.tensor([0]), 0, "signature"))
    assert fed.seconds == {"signature": 1, "clustering": 2}


@engines
def test_answers_come_back_in_the_order_of_the_cohort(engine):
    """Whatever the engine did first: sizes stand where their clients were asked."""
    fed = fed_of(engine)
    models = tree.to(tree.stack([fed.net.init(0)]), fed.device)
    ids = torch.tensor([5, 0, 3, 2])
    heard = fed.map(train, Cohort(ids, 0), work=Work(epochs=1), shared={"model": tree.take(models, 0)}, lr=0.1)
    assert heard.ids.tolist() == ids.tolist()
    assert heard.answers["size"].tolist() == [9, 13, 20, 7]


@engines
def test_batches_depend_on_name_round_and_phase_only(engine):
    """The same client in another cohort trains the same way; another round or phase draws other batches."""
    fed = fed_of(engine)
    model = fed.net.init(0)

    def trained(ids, round, phase) -> Tensor:
        heard = fed.map(train, Cohort(torch.tensor(ids), round, phase), work=Work(epochs=1, batch=5),
                        shared={"model": model}, lr=0.1, keep=False)
        return tree.flat(heard.answers["model"])[ids.index(1)]

    alone = trained([1], 0, "train")
    assert torch.allclose(trained([0, 1, 2], 0, "train"), alone, atol=1e-6)
    assert not torch.allclose(trained([1], 1, "train"), alone, atol=1e-6)
    assert not torch.allclose(trained([1], 0, "sweep"), alone, atol=1e-6)


def test_full_batches_and_counted_steps():
    """batch=0 is one step on all rows; steps=3 are three batches however many rows there are."""
    clients, cohort = fed_of("loop").clients, Cohort(torch.tensor([0]), 0)
    for work, sizes in ((Work(epochs=2, batch=0), [13, 13]), (Work(steps=4, batch=5), [5, 5, 3, 5])):
        assert [len(batch.y) for batch in clients.batches(clients.plan(0, cohort, work))] == sizes


def test_one_thread_holds_for_all_linear_algebra():
    """Torch's, numpy's and scipy's libraries are told, and told back."""
    def told():
        libraries = ThreadpoolController().info()
        return torch.get_num_threads(), [lib["num_threads"] for lib in libraries if lib["user_api"] == "blas"]

    before = told()
    with one_thread():
        assert told() == (1, [1] * len(before[1]))
    assert told() == before
    assert before[1]


def test_batches_gathered_together_are_the_rows_of_the_plan(monkeypatch):
    """However many pixels are gathered at once, batch k holds the live rows of line k of the plan."""
    clients = fed_of("loop").clients
    plan = clients.plan(0, Cohort(torch.tensor([0]), 0), Work(epochs=3, batch=4))
    for at_once in (1, 40, 10**9):
        monkeypatch.setattr(local, "PIXELS_AT_ONCE", at_once)
        for rows, batch in zip(plan, clients.batches(plan), strict=True):
            x, y = clients.gather(rows[rows >= 0])
            assert torch.equal(batch.x, x)
            assert torch.equal(batch.y, y)


def test_fit_and_validation_part_the_training_rows():
    """Fit is what validation leaves; neither moves between calls."""
    fed = fed_of("loop")
    fit, held = fed.clients.rows(1, "fit"), fed.clients.rows(1, "validation")
    assert sorted([*fit, *held]) == sorted(fed.clients.rows(1, "train"))
    assert held.tolist() == fed_of("loop").clients.rows(1, "validation").tolist()


def test_unknown_rows_are_refused():
    """A row set has one of four names."""
    with pytest.raises(UmbelError, match="'everything'"):
        fed_of("loop").map(train, Cohort(torch.tensor([0]), 0), work=Work(rows="everything"))


def test_a_sample_does_not_depend_on_the_order_of_clients():
    """The cohort of a round is decided by names; a client that never was there moves nobody else's draw."""
    orders = (0, 1, 2, 3, 4, 5), (5, 3, 1, 0, 2, 4)
    a, b = (ENGINES["loop"](tiny_model(), tiny_population(order), SEED) for order in orders)
    for index in range(5):
        mine, theirs = (
            {fed.names[i] for i in sample(fed, FedAvg().init(fed, 0), index, 0.5).ids.tolist()} for fed in (a, b)
        )
        assert mine == theirs
        assert len(mine) == 3


def test_three_lost_rounds_end_a_run_with_the_usual_cause():
    """A learning rate that explodes is named, not looped over."""
    fed = fed_of("loop")
    with pytest.raises(UmbelError, match=r"3 rounds in a row were lost.*lr 1e\+30"):
        list(rounds(FedAvg(local=LOCAL.__class__(lr=1e30, epochs=3)), fed, rounds=9))


def test_a_task_name_belongs_to_one_task():
    """Two tasks under one name would be a lottery on a remote node."""
    with pytest.raises(ValueError, match="registered already"):
        register(Plain("train", lambda net, client: Reply({})))


def test_memory_is_read_from_before_the_round():
    """A round done twice reads the same page both times, so that a retry does not count double."""
    diary = fed_of("loop").clients.diary
    diary.write("a", 0, {"n": torch.tensor(1)})
    diary.write("a", 1, {"n": torch.tensor(2)})
    assert diary.read("a", 1)["n"] == 1
    diary.write("a", 1, {"n": torch.tensor(3)})
    assert (diary.read("a", 1)["n"], diary.read("a", 2)["n"]) == (1, 3)
    assert diary.read("a", 0) == {}


def test_every_lost_answer_of_a_round_is_noted():
    """Of two calls both: what is counted is what was logged."""
    fed = fed_of("loop")
    for task in (far_apart, half_finite):
        fed.map(task, Cohort(torch.tensor([0, 5, 3]), 0))
    assert fed.lost == {"c005": ["not finite", "not finite"]}
