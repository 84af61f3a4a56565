"""FedNova, SCAFFOLD, LG-FedAvg and Per-FedAvg against literal computations on the tiny federation."""

from dataclasses import replace

import pytest
import torch
from helpers import ENGINES, LOCAL, SEED, SIZES, gap, play, tiny_model, tiny_population

from umbel import tree
from umbel.algorithms import FedAvg, FedNova, LGFedAvg, Local, PerFedAvg, Scaffold
from umbel.algorithms.perfedavg import meta_train
from umbel.engines import LoopEngine
from umbel.federation.door import Cohort
from umbel.nets.model import Batch

N = len(SIZES)
PLAIN = replace(LOCAL, momentum=0.0)


def fed():
    return LoopEngine(tiny_model(), tiny_population(), SEED)


def batches(engine, i, index, work):
    """The batches that client i draws in a round."""
    cohort = Cohort(torch.tensor([i]), index)
    return list(engine.clients.batches(engine.clients.plan(i, cohort, work)))


def mean(models, weights):
    total = sum(weights)
    return {name: sum(w / total * model[name] for w, model in zip(weights, models, strict=True)) for name in models[0]}


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_fednova_with_equal_steps_is_fedavg(momentum):
    """One full batch an epoch is the same number of steps for everybody."""
    local = Local(lr=0.1, momentum=momentum, epochs=3, batch=0)
    assert gap(play(FedNova(local=local), fed()).models, play(FedAvg(local=local), fed()).models) < 1e-6


def test_fednova_normalises_by_effective_steps():
    """w - (sum p a) sum p (w - w_i) / a, with a = tau without momentum."""
    engine = fed()
    start = engine.net.init(SEED)
    ends, steps = [], []
    for i in range(N):
        model = start
        plan = batches(engine, i, 0, PLAIN.work)
        for batch in plan:
            model = tree.plus(model, engine.net.gradient(model, batch), -PLAIN.lr)
        ends.append(model)
        steps.append(len(plan))
    share = [size / sum(SIZES) for size in SIZES]
    effective = sum(p * a for p, a in zip(share, steps, strict=True))
    expected = {name: start[name] - effective * sum(
        p * (start[name] - end[name]) / a for p, end, a in zip(share, ends, steps, strict=True)) for name in start}
    assert len(set(steps)) > 1
    assert gap(tree.take(play(FedNova(local=PLAIN), engine, rounds=1).models, 0), expected) < 1e-6


def test_fednovas_effective_steps_with_momentum():
    """Step k of tau moves what momentum makes of it: tau = 3 at 0.5 is 1 + (1 + 1/2) + (1 + 1/2 + 1/4)."""
    length = FedNova(local=replace(LOCAL, momentum=0.5))._length(torch.tensor([1.0, 2.0, 3.0]))
    assert length.tolist() == pytest.approx([1, 2.5, 4.25])


def test_scaffolds_first_round_is_fedavgs():
    """No control variate is anything yet."""
    one, other = (play(kind(local=PLAIN), fed(), rounds=1) for kind in (Scaffold, FedAvg))
    assert gap(one.models, other.models) < 1e-6


@pytest.mark.parametrize("asked", [range(N), (0, 3, 4)])
def test_scaffold_equals_its_box(asked):
    """Two rounds of Algorithm 1, option II, by hand; c moves by 1 / N of each change, however many are asked."""
    engine = fed()
    server, control = engine.net.init(SEED), engine.net.zeros()
    own = [engine.net.zeros() for _ in range(N)]
    for index in range(2):
        ends, change = [], engine.net.zeros()
        for i in asked:
            model = server
            plan = batches(engine, i, index, PLAIN.work)
            for batch in plan:
                slope = engine.net.gradient(model, batch)
                model = {k: model[k] - PLAIN.lr * (slope[k] - own[i][k] + control[k]) for k in model}
            new = {k: own[i][k] - control[k] + (server[k] - model[k]) / (len(plan) * PLAIN.lr) for k in model}
            change = {k: change[k] + (new[k] - own[i][k]) / N for k in change}
            own[i] = new
            ends.append(model)
        server = mean(ends, [SIZES[i] for i in asked])
        control = tree.plus(control, change)
    state = play(Scaffold(local=PLAIN), engine, rounds=2, ids=tuple(asked))
    assert gap(tree.take(state.models, 0), server) < 1e-5
    assert gap(state.control, control) < 1e-4


def test_scaffold_runs_without_momentum_and_scales_when_it_has_some():
    """Public codes divide by steps x lr whatever the momentum; their controls grow 1 / (1 - m) times too large."""
    assert Scaffold().local.momentum == 0
    with_it, without_it = (play(Scaffold(local=replace(LOCAL, momentum=momentum, epochs=20)), fed(), rounds=1)
                           for momentum in (0.5, 0.0))
    ratio = tree.flat(tree.stack([with_it.control])).norm() / tree.flat(tree.stack([without_it.control])).norm()
    assert 0.3 < float(ratio) < 1.5


def test_perfedavg_equals_its_box():
    """A step alpha on one half, its gradient on the other half, applied at the old point with beta; no momentum."""
    engine = fed()
    method = PerFedAvg(outer=0.2, local=PLAIN)
    start = engine.net.init(SEED)
    ends = []
    for i in range(N):
        model = start
        for x, y, *_ in batches(engine, i, 0, PLAIN.work._replace(batch=2 * PLAIN.batch)):
            first, second = Batch(x[: PLAIN.batch], y[: PLAIN.batch]), Batch(x[PLAIN.batch :], y[PLAIN.batch :])
            if len(second.y):
                ahead = tree.plus(model, engine.net.gradient(model, first), -PLAIN.lr)
                model = tree.plus(model, engine.net.gradient(ahead, second), -0.2)
        ends.append(model)
    assert gap(tree.take(play(method, engine, rounds=1).models, 0), mean(ends, SIZES)) < 1e-6


def test_hessian_free_perfedavg_follows_the_exact_second_order():
    """(I - alpha H) g by differences equals the gradient of f(w - alpha g(w)) by autograd, where all batches agree."""
    engine = fed()
    net = engine.net
    x, y = engine.clients.gather(engine.clients.rows(1, "train")[:6])
    tripled = Batch(x.repeat(3, 1, 1, 1), y.repeat(3))
    model = net.init(SEED)

    new = meta_train.step(net, {"model": model}, {}, tripled, lr=0.1, outer=1.0, size=6, hessian_free=True)["model"]
    smooth = net.vectorised()

    def after(params):
        return smooth.loss(tree.plus(params, smooth.gradient(params, Batch(x, y)), -0.1), Batch(x, y))

    assert gap(new, tree.minus(model, torch.func.grad(after)(model))) < 1e-4


@pytest.mark.parametrize(("end", "shared"), [("last", "3"), ("first", "1")])
def test_lg_shares_some_layers_and_keeps_the_others(end, shared):
    """Global layers are averaged by size, local ones are each client's own and never travel."""
    engine = fed()
    state = play(LGFedAvg(1, end=end, local=LOCAL), engine, rounds=2)
    assert {name.split(".")[0] for name in state.models} == {shared}
    pages = [engine.memory()[0][name]["last"] for name in engine.names]
    averaged = mean([{k: page[k] for k in state.models} for page in pages], SIZES)
    assert gap(tree.take(state.models, 0), averaged) < 1e-6
    local = "1.weight" if shared == "3" else "3.weight"
    assert not torch.allclose(pages[0][local], pages[1][local])


@pytest.mark.parametrize("order", ["first", "hessian-free"])
def test_perfedavg_takes_no_step_on_padding(order):
    """A client of nine or seven rows has batches of five whose last part may be empty: no step, on any engine."""
    method = PerFedAvg(outer=0.1, order=order, local=replace(LOCAL, momentum=0.0))
    ends = [play(method, ENGINES[name](tiny_model(), tiny_population(), SEED), rounds=2)
            for name in ("loop", "simulator", "chunked")]
    for end in ends[1:]:
        assert gap(tree.take(ends[0].models, 0), tree.take(end.models, 0)) < 1e-5
