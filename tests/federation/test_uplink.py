"""The one exit: what each uplink does to numbers, that every engine's answers pass it, and what it may not touch."""

import math
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from helpers import ENGINES, LOCAL, SEED, gap, play, tiny_model, tiny_population, vectorised
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import tensor

from umbel import tree
from umbel.algorithms import FLAG, IFCA, PACFL, FedAvg
from umbel.clustering.signatures import class_counts, class_vectors
from umbel.data.clients import Work
from umbel.engines import Simulator, simulator
from umbel.errors import UmbelError
from umbel.federation import uplink as exits
from umbel.federation.door import Answered, Cohort, NobodyAnswered
from umbel.federation.ledger import totals
from umbel.federation.scoring import score
from umbel.federation.tasks import TASKS, Client, Leaf, Plain, Release, Reply, UpTo, like, register
from umbel.federation.training import train
from umbel.federation.uplink import UPLINKS, Clip, Quantise, TopK, Uplink, parse, written
from umbel.nets.wrap import build

EVERYBODY = torch.arange(6)
STEPS = {"clip:0.05": 1e-5, "topk:0.3": 1e-5, "quantise:16": 1e-5, "quantise:8": 0.02, "topk:0.3+quantise:8": 0.02}

# Two clients with a model of two layers, "a" of two numbers and "b" of three; the second client did not move in "a".
START = {"a": tensor([[1.0, 2.0], [1.0, 2.0]]), "b": tensor([[[0.0, 0.0, 1.0]], [[5.0, 5.0, 5.0]]])}
MOVE = {"a": tensor([[3.0, 0.0], [0.0, 0.0]]), "b": tensor([[[0.0, -4.0, 0.5]], [[0.5, -0.25, 0.0]]])}
SEND = {"model": tree.plus(START, MOVE), "size": tensor([7, 9])}
PROMISED = {"model": {"a": Leaf((2,)), "b": Leaf((1, 3))}, "size": Leaf((), torch.int64)}
RECEIVED = {"model": START}


def there_and_back(uplink, send=SEND, received=RECEIVED, promised=PROMISED):
    return uplink.arrive(uplink.leave(send, received), received, promised)


def shapes(a):
    """An answer as the leaves that were promised of it."""
    return tree.each(lambda leaf: Leaf(tuple(leaf.shape[1:]), leaf.dtype), a)


# Each of them ---------------------------------------------------------------------------------------------------------


def test_a_long_update_is_clipped_and_a_short_one_leaves_as_it_is():
    """|u| = sqrt(9 + 16 + 0.25) = 5.0249 becomes 2.5; the second, of norm 0.559, is the same to the last bit."""
    sent = Clip(2.5).leave(SEND, RECEIVED)
    scale = 2.5 / math.sqrt(25.25)
    assert sent["model"]["a"][0].tolist() == pytest.approx([1 + 3 * scale, 2])
    assert sent["model"]["b"][0, 0].tolist() == pytest.approx([0, -4 * scale, 1 + 0.5 * scale])
    assert all(torch.equal(sent["model"][name][1], SEND["model"][name][1]) for name in START)
    assert sent["size"] is SEND["size"]
    assert Clip(2.5).promise(PROMISED, RECEIVED) is PROMISED


def test_the_largest_entries_travel_with_their_places():
    """Of 5 entries, a0 a1 b0 b1 b2, a share of 0.3 is two: places 0 and 3 of the first, 2 and 3 of the second."""
    uplink = TopK(0.3)
    sent = uplink.leave(SEND, RECEIVED)
    largest = sent["model"]["largest"]
    assert largest["index"].tolist() == [[0, 3], [2, 3]]
    assert largest["value"].tolist() == [[3, -4], [0.5, -0.25]]
    assert (largest["index"].dtype, largest["value"].dtype) == (torch.int32, torch.float32)
    assert uplink.promise(PROMISED, RECEIVED)["model"] == {
        "largest": {"index": Leaf((2,), torch.int32, 0, 4), "value": Leaf((2,))}}
    back = uplink.arrive(sent, RECEIVED, PROMISED)
    assert back["model"]["a"].tolist() == [[4, 2], [1, 2]]
    assert back["model"]["b"].tolist() == [[[0, -4, 1]], [[5.5, 4.75, 5]]]
    assert list(back["model"]) == ["a", "b"]


def test_a_share_is_rounded_up_and_not_by_rounding_errors():
    """0.07 * 100 is 7.000000000000001 to a computer; something always travels."""
    assert [TopK(share).count(d) for share, d in ((0.07, 100), (0.071, 100), (0.001, 5), (1.0, 5))] == [7, 8, 1, 5]


@pytest.mark.parametrize("bits", [8, 16])
def test_quantising_is_a_literal_loop(bits):
    """number = round((x - low) / step) over 255 or 65535 steps from the lowest to the highest of one client's leaf."""
    leaf = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(1))
    sent = Quantise(bits).leave({"x": leaf}, {})["x"]
    first = 0 if bits == 8 else -(2**15)
    for k in range(3):
        low, high = float(leaf[k].min()), float(leaf[k].max())
        step = (high - low) / (2**bits - 1)
        assert (float(sent["low"][k]), float(sent["step"][k])) == pytest.approx((low, step), rel=1e-6)
        wanted = [round((float(x) - float(sent["low"][k])) / float(sent["step"][k])) + first for x in leaf[k].flatten()]
        assert sent["number"][k].flatten().tolist() == pytest.approx(wanted, abs=0 if bits == 8 else 1)
    assert sent["number"].dtype == (torch.uint8 if bits == 8 else torch.int16)
    assert sent["number"].amin((1, 2)).tolist() == [first] * 3
    assert sent["number"].amax((1, 2)).tolist() == [first + 2**bits - 1] * 3


def test_what_quantising_leaves_alone():
    """Counts, float64 statistics and single numbers; a constant leaf comes back exact, an empty one empty."""
    send = {"size": tensor([7]), "loss": tensor([[0.1, 0.2]], dtype=torch.float64), "one": tensor([0.3]),
            "same": torch.full((1, 4), 0.1), "none": torch.zeros(1, 0, 3)}
    sent = Quantise(8).leave(send, {})
    assert all(sent[name] is send[name] for name in ("size", "loss", "one"))
    assert sent["same"]["step"].tolist() == [0]
    back = there_and_back(Quantise(8), send, {}, shapes(send))
    assert torch.equal(back["same"], send["same"])
    assert back["none"].shape == (1, 0, 3)


def test_of_a_model_the_update_is_quantised():
    """A weight of 100 that moved by 0.001: the error is of the size of the move, not of the weight."""
    start = {"model": {"w": tensor([[100.0, -100.0, 0.0]])}}
    send = {"model": {"w": tensor([[100.0, -100.0, 0.001]])}}
    promised = shapes(send)
    near = there_and_back(Quantise(8), send, start, promised)["model"]["w"]
    far = there_and_back(Quantise(8), send, {}, promised)["model"]["w"]
    assert float((near - send["model"]["w"]).abs().max()) < 0.001 / 255 + 1e-6
    assert float((far - send["model"]["w"]).abs().max()) > 0.1
    assert Quantise(8).promise(promised, start) == {"model": {"w": {
        "number": Leaf((3,), torch.uint8), "low": Leaf(), "step": Leaf(least=0)}}}


numbers = st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=30)


@settings(max_examples=60, deadline=None, database=None)
@given(numbers, st.sampled_from([8, 16]))
def test_quantised_numbers_are_within_half_a_step(values, bits):
    """And a float32's own rounding."""
    leaf = torch.tensor([values], dtype=torch.float32)
    sent = Quantise(bits).leave({"x": leaf}, {})
    back = Quantise(bits).arrive(sent, {}, shapes({"x": leaf}))["x"]
    rounding = 4 * 2**-23 * float(leaf.abs().max()) + 1e-37
    assert float((back - leaf).abs().max()) <= 0.501 * float(sent["x"]["step"]) + rounding


@settings(max_examples=60, deadline=None, database=None)
@given(numbers, st.floats(0.01, 1.0))
def test_what_topk_leaves_out_is_smaller_than_what_it_sends(values, share):
    """Sent entries arrive, all others are as they were; with share 1 nothing is lost."""
    start, move = {"model": {"w": torch.zeros(1, len(values))}}, torch.tensor([values], dtype=torch.float32)
    send = {"model": {"w": move}}
    back = there_and_back(TopK(share), send, start, shapes(send))["model"]["w"][0]
    kept = torch.zeros(len(values), dtype=torch.bool)
    kept[TopK(share).leave(send, start)["model"]["largest"]["index"][0].long()] = True
    assert int(kept.sum()) == TopK(share).count(len(values))
    assert torch.equal(back, torch.where(kept, move[0], 0))
    if not bool(kept.all()):
        assert move[0][~kept].abs().max() <= move[0][kept].abs().min()


@settings(max_examples=60, deadline=None, database=None)
@given(numbers, st.floats(1e-3, 1e3))
def test_no_update_is_longer_than_the_norm(values, norm):
    """To a float32's precision."""
    start = {"model": {"w": torch.zeros(1, len(values))}}
    sent = Clip(norm).leave({"model": {"w": torch.tensor([values], dtype=torch.float32)}}, start)["model"]["w"]
    assert float(sent.norm()) <= norm * (1 + 1e-5)


def test_a_chain_acts_in_turn_and_is_undone_in_reverse():
    """The values of a top-k travel as bytes: of 0.5 and -0.25 and of 3 and -4, both ends of their ranges, exactly."""
    first, second = parse("topk:0.3+quantise:8")
    promised = first.promise(PROMISED, RECEIVED)
    sent = second.leave(first.leave(SEND, RECEIVED), RECEIVED)
    assert sent["model"]["largest"]["index"].dtype == torch.int32
    assert sent["model"]["largest"]["value"]["number"].tolist() == [[255, 0], [255, 0]]
    back = first.arrive(second.arrive(sent, RECEIVED, promised), RECEIVED, PROMISED)
    assert back["model"]["b"][0, 0].tolist() == pytest.approx([0, -4, 1])
    assert back["model"]["b"][1, 0].tolist() == pytest.approx([5.5, 4.75, 5])


@pytest.mark.parametrize("uplink", [Clip(0.1), TopK(0.1)])
@pytest.mark.parametrize("received", [{}, {"model": {"c": START["a"]}}])
def test_a_model_that_answers_no_model_is_no_update(uplink, received):
    """It leaves as it is: there is nothing to measure it against."""
    assert uplink.leave(SEND, received) is SEND
    assert uplink.promise(PROMISED, received) is PROMISED
    assert uplink.arrive(SEND, received, PROMISED) is SEND


def test_some_layers_are_an_update_too():
    """What is sent may be a part of what was received; a layer that is no float32 travels as it is."""
    send = {"model": {"b": SEND["model"]["b"], "n": tensor([[3], [4]])}}
    received = {"model": {**START, "n": tensor([[1], [1]])}}
    promised = shapes(send)
    for uplink in (Clip(100.0), TopK(1.0), Quantise(16)):
        back = there_and_back(uplink, send, received, promised)["model"]
        assert back["n"] is send["model"]["n"]
        assert torch.allclose(back["b"], send["model"]["b"], atol=1e-4)
        assert uplink.promise(promised, received)["model"]["n"] == promised["model"]["n"]


# As text --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "chain"), [
    ("", ()), (" ", ()), ("clip:3", (Clip(3.0),)), ("topk", (TopK(0.1),)),
    (" topk:0.10 + quantise", (TopK(0.1), Quantise(8))), ("clip:1e30+quantise:16", (Clip(1e30), Quantise(16))),
])
def test_a_chain_and_its_text(text, chain):
    """A setting that is left out has its default; what is written is read again."""
    assert parse(text) == chain
    assert parse(written(chain)) == chain


@pytest.mark.parametrize(("text", "sentence"), [
    ("tpk:0.1", "There is no uplink 'tpk'. Did you mean 'topk'?"),
    ("topk:2", "The 'share' of topk must be greater than 0 and at most 1. Got 2.0 instead."),
    ("topk:many", "The 'share' of topk must be a number. Got \"many\" instead."),
    ("clip:0", "The 'norm' of clip must be greater than 0 and at most 1e+30. Got 0.0 instead."),
    ("clip:nan", "The 'norm' of clip must be a finite number. Got nan instead."),
    ("clip:1,2", "The uplink 'clip' takes norm, and no more. Got 'clip:1,2' instead."),
    ("quantise:12", "The 'bits' of quantise must be 8 or 16. Got 12 instead."),
    ("clip+clip", "Each uplink stands once in a chain. Got 'clip' twice in 'clip+clip'."),
    ("quantise+topk", "The uplink 'topk' must stand before 'quantise', behind which there is no model."
                      " Got 'quantise+topk' instead."),
])
def test_a_wrong_chain_is_refused_in_one_sentence(text, sentence):
    """Before anybody is asked; an uplink that would find nothing to act on is refused as well."""
    with pytest.raises(UmbelError) as error:
        parse(text)
    assert str(error.value) == sentence


# On every engine ------------------------------------------------------------------------------------------------------


def with_workers(net, population, seed=0):
    """One client at a time, in two processes."""
    made = Simulator(build("mlp", (1, 3, 3), 3), population, seed, vectorise=False)
    made.workers = 2
    return made


def asked(fed, text, **more):
    """Train everybody from one model, and write down what the engine hands to the door."""
    fed.uplinks = parse(text)
    travelled, inner = [], fed.perform

    def perform(call):
        for chunk in inner(call):
            travelled.append(chunk)
            yield chunk

    fed.perform = perform
    try:
        heard = fed.map(train, Cohort(EVERYBODY, 0), work=Work(epochs=1, batch=5), shared={"model": fed.net.init(0)},
                        lr=0.1, **more)
    finally:
        del fed.perform
    return heard, travelled


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("text", STEPS)
def test_what_reaches_the_server_is_alike_on_every_engine(engine, text):
    """To 1e-5, or to a step where numbers are rounded to 8 bits; and the bytes billed are those that travelled."""
    loop, other = (ENGINES[name](tiny_model(), tiny_population(), SEED) for name in ("loop", engine))
    a, _ = asked(loop, text)
    b, travelled = asked(other, text)
    assert a.ids.tolist() == b.ids.tolist() == EVERYBODY.tolist()
    assert gap(a.answers["model"], b.answers["model"]) <= STEPS[text]
    assert a.answers["size"].tolist() == b.answers["size"].tolist()
    moved = float((a.answers["model"]["1.weight"] - loop.net.init(0)["1.weight"]).abs().max())
    assert moved > 0.02  # or nothing was compared
    billed = [sum(line.bytes) for line in other.ledger.lines if line.direction == "up"]
    assert sum(billed) == sum(tree.nbytes(chunk.send) for chunk in travelled)
    assert totals(loop.ledger.lines) == totals(other.ledger.lines)


def test_workers_send_the_same(monkeypatch):
    """The worker is told the chain by its text; what passes the pipe is what travels, to the last bit."""
    monkeypatch.setattr(simulator, "WORTH", 0.0)
    shared = with_workers(None, tiny_population(), SEED)
    alone = with_workers(None, tiny_population(), SEED)
    alone.workers = 1
    (a, _), (b, travelled) = asked(alone, "topk:0.3+quantise:16"), asked(shared, "topk:0.3+quantise:16")
    assert shared.crews
    assert gap(a.answers["model"], b.answers["model"]) == 0
    assert {chunk.send["model"]["largest"]["value"]["number"].dtype for chunk in travelled} == {torch.int16}
    shared.close()


def test_an_uplink_that_workers_cannot_look_up_keeps_the_work_at_home(monkeypatch):
    """As a task or a model of one's own does."""
    monkeypatch.setattr(simulator, "WORTH", 0.0)
    fed = with_workers(None, tiny_population(), SEED)
    asked(fed, "nudge:0.5")
    assert not fed.crews


@pytest.mark.parametrize(("text", "amount"), [  # of a model of 107 numbers in four layers, and the size
    ("", 4 * 107), ("clip:1", 4 * 107), ("quantise:8", 107 + 4 * 8), ("quantise:16", 2 * 107 + 4 * 8),
    ("topk:0.1", 11 * 8), ("topk:0.1+quantise:8", 11 * 5 + 8),
])
def test_what_an_answer_costs(text, amount):
    """Exact bytes: 4 of a place, 4, 2 or 1 of a number, 8 for each leaf's range."""
    fed = vectorised(tiny_model(), tiny_population(), SEED)
    asked(fed, text)
    up = {line.kind: set(line.bytes) for line in fed.ledger.lines if line.direction == "up"}
    assert up == {"model": {amount}, "size": {8}}


@pytest.mark.parametrize("engine", ENGINES)
def test_ragged_signatures_are_quantised(engine):
    """Class vectors travel as bytes, their classes as they are; each number is within half a step."""
    fed = ENGINES[engine](tiny_model(), tiny_population(), SEED)
    cohort = Cohort(EVERYBODY, 0, "signature")
    exact = fed.map(class_vectors, cohort, rank=2).answers
    fed.ledger.drain()
    fed.uplinks = parse("quantise:8")
    near = fed.map(class_vectors, cohort, rank=2).answers
    assert torch.equal(near["basis_class"].values, exact["basis_class"].values)
    assert near["basis"].length.tolist() == exact["basis"].length.tolist()
    assert 0 < float((near["basis"].values - exact["basis"].values).abs().max()) < 0.51 * 2 / 255
    billed = [line.bytes[0] for line in fed.ledger.lines if line.kind == "basis"]
    assert sorted(billed) == sorted(9 * rows + 8 for rows in exact["basis"].length.tolist())


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("become", [(), ("fine_tune",), ("remembered", "fine_tune")])
def test_scores_and_what_clients_make_of_their_models_are_untouched(engine, become):
    """A model that a client tunes for itself never travels: its score is the same with a chain that would ruin it."""
    fed = ENGINES[engine](tiny_model(), tiny_population(), SEED)
    model = fed.net.init(0)

    def scores():
        heard = fed.map(score, Cohort(EVERYBODY, 1, "evaluate"), work=Work(epochs=2, batch=5), shared={"model": model},
                        become=become, lr=0.1)
        return heard.answers["loss"].tolist(), heard.answers["hits"].tolist()

    before = scores()
    fed.uplinks = parse("clip:1e-6+topk:0.01+quantise:8")
    assert scores() == before


@pytest.mark.parametrize("method", [
    FLAG(gradient_epochs=2, cut="gap", local=LOCAL), PACFL(local=LOCAL), IFCA(2, local=LOCAL)], ids=lambda m: m.name)
def test_methods_run_with_quantised_answers(method):
    """Labels are those without; models are near."""
    plain, coarse = (vectorised(tiny_model(), tiny_population(), SEED) for _ in range(2))
    coarse.uplinks = parse("quantise:8")
    a, b = play(method, plain), play(method, coarse)
    assert a.labels.tolist() == b.labels.tolist()
    assert 0 < gap(a.models, b.models) < 0.05


# What is not believed -------------------------------------------------------------------------------------------------


def forged(fed, change):
    """Let `change` have its way with what client 1 sends."""
    inner = fed.perform

    def perform(call):
        for chunk in inner(call):
            send = tree.each(torch.clone, chunk.send)
            for row in (chunk.positions == 1).nonzero().flatten().tolist():
                change(send["model"], row)
            yield Answered(chunk.positions, send)

    fed.perform = perform
    return fed


def _set(model, row, path, value):
    for name in path.split("/"):
        model = model[name]
    model[row] = value


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("text", "path", "value", "reason"), [
    ("topk:0.1", "largest/index", 107, "model/largest/index is above 106"),
    ("topk:0.1", "largest/index", -1, "model/largest/index is below 0"),
    ("topk:0.1", "largest/value", torch.inf, "not finite"),
    ("quantise:8", "1.weight/step", torch.nan, "not finite"),
    ("quantise:8", "1.weight/step", -1.0, "model/1.weight/step is below 0"),
    ("quantise:8", "1.weight/step", 3e38, "not finite"),  # what travels is finite, what it stands for is not
])
def test_a_forged_answer_is_dropped_with_its_reason(engine, text, path, value, reason):
    """And the others are heard."""
    fed = forged(ENGINES[engine](tiny_model(), tiny_population(), SEED), lambda m, row: _set(m, row, path, value))
    heard, _ = asked(fed, text)
    assert heard.ids.tolist() == [0, 2, 3, 4, 5]
    assert heard.lost == {"c001": reason}


def plain(name, function, answers, **more):
    return TASKS.get(name) or register(Plain(name, function, answers, **more))


ranged = plain("ranged", lambda net, client: Reply({"x": tensor([0.5, float(len(client.y)) / 10]), "n": -client.size}),
               lambda net: {"x": Leaf((2,), least=0, most=1.65), "n": Leaf((), torch.int64, most=-8)})


@pytest.mark.parametrize("engine", ENGINES)
def test_numbers_outside_their_range_are_not_believed(engine):
    """Clients hold 13, 20, 7, 20, 16 and 9 rows: x is at most 1.65, and n at most -8."""
    heard = ENGINES[engine](tiny_model(), tiny_population(), SEED).map(ranged, Cohort(EVERYBODY, 0))
    assert heard.ids.tolist() == [0, 4, 5]
    assert heard.lost == {"c001": "x is above 1.65", "c002": "n is above -8", "c003": "x is above 1.65"}


def test_a_node_refuses_an_uplink_that_it_does_not_know(monkeypatch):
    """In one sentence; nothing is imported from the wire."""
    fed = ENGINES["flower"](tiny_model(), tiny_population(), SEED)
    fed.uplinks = (Nudge(0.5),)
    monkeypatch.delitem(UPLINKS, "nudge")
    with pytest.raises(NobodyAnswered, match="There is no uplink 'nudge'"):
        fed.map(class_counts, Cohort(EVERYBODY, 0))


# Releases -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Nudge(Uplink):
    """Adds a multiple of the sensitivity to every number of a statistic: noise that tests can count with."""

    by: float = 0.0
    name: ClassVar[str] = "nudge"

    def release(self, statistic, sensitivity):
        """The same at every client."""
        return tree.each(lambda leaf: leaf + self.by * sensitivity * torch.arange(leaf[0].numel()).view(leaf.shape[1:]),
                         statistic)


UPLINKS["nudge"] = Nudge


def _covariance(net, client: Client, *, rank: int) -> Release:
    x = client.x.flatten(1).double()
    x = x / x.norm(dim=1, keepdim=True).clamp(min=1)  # a row of norm 1 moves x'x by 1
    return Release({"covariance": x.T @ x}, 1.0, {"rows_seen": client.size})


def _leading(net, statistic, *, rank: int) -> Reply:
    matrix = statistic["covariance"]
    vectors = torch.linalg.eigh((matrix + matrix.T) / 2).eigenvectors[:, -rank:].T
    ends = vectors.gather(1, vectors.abs().argmax(1, keepdim=True)).sign()
    return Reply({"vectors": (vectors * ends).float()})


covariance = plain("covariance", _covariance, lambda net, rank: {"vectors": Leaf((UpTo(rank), net.features))},
                   options=("rank",), after=_leading)


@pytest.mark.parametrize("engine", ENGINES)
def test_uplinks_act_on_a_release_before_it_is_finished(engine):
    """The eigenvectors are those of the nudged covariance, computed here by hand; what is kept stays."""
    fed = ENGINES[engine](tiny_model(), tiny_population(), SEED)
    fed.uplinks = parse("nudge:0.5")
    heard = fed.map(covariance, Cohort(EVERYBODY, 3, "signature"), rank=2)
    people = tiny_population()
    for k in range(6):
        rows = torch.from_numpy(people.pool.x[people.train[k]])
        release = _covariance(None, Client(rows, None, tensor(len(rows)), None, {}), rank=2)
        moved = release.statistic["covariance"] + 0.5 * torch.arange(81).view(9, 9)
        wanted = _leading(None, {"covariance": moved}, rank=2).send["vectors"]
        assert torch.allclose(heard.answers["vectors"].values[k], wanted, atol=1e-5)
        assert not torch.allclose(wanted, _leading(None, release.statistic, rank=2).send["vectors"], atol=1e-2)
        assert int(fed.memory()[0][f"c{k:03d}"]["rows_seen"]) == len(rows)


@pytest.mark.parametrize("engine", ENGINES)
def test_counts_are_released(engine):
    """0, 1 and 2 are added to the counts of three classes; without uplinks they are exact."""
    fed = ENGINES[engine](tiny_model(), tiny_population(), SEED)
    exact = fed.map(class_counts, Cohort(EVERYBODY, 0)).answers["counts"]
    assert exact.sum(1).tolist() == [13, 20, 7, 20, 16, 9]
    fed.uplinks = parse("nudge:1")
    assert (fed.map(class_counts, Cohort(EVERYBODY, 0)).answers["counts"] - exact).tolist() == [[0, 1, 2]] * 6


def test_promises_are_what_leaves():
    """For every chain, the tensors that leave have the names, shapes and types that are promised."""
    net = tiny_model()
    received = {"model": tree.stack([net.init(0)] * 2)}
    send = {"model": tree.stack([net.init(1), net.init(2)])}
    for text in STEPS:
        expected, sent = {"model": like(net.shapes)}, send
        for uplink in parse(text):
            expected, sent = uplink.promise(expected, received), uplink.leave(sent, received)
        leaves = {name: leaf._replace(least=None, most=None) for name, leaf in tree.named(expected).items()}
        assert leaves == tree.named(shapes(sent))


def test_an_uplink_that_does_nothing_changes_nothing():
    """The base class is one: a run with it is a run without, to the last bit."""
    assert exits.Uplink().leave(SEND, {}) is SEND
    quiet, free = (vectorised(tiny_model(), tiny_population(), SEED) for _ in range(2))
    quiet.uplinks = (Nudge(0.0),)
    a, b = play(FedAvg(local=LOCAL), quiet), play(FedAvg(local=LOCAL), free)
    assert gap(a.models, b.models) == 0
