"""A tiny federation with clear groups, all engines, and one entry a method for the contract test."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from umbel import tree
from umbel.algorithms import (
    CFL,
    CFLGT,
    FLAG,
    FLHC,
    IFCA,
    PACFL,
    Algorithm,
    Auto,
    FedAvg,
    FedAvgFT,
    FedBN,
    FedClust,
    FedGroup,
    FedNova,
    FedProx,
    FedSEM,
    FedSoft,
    KMeans,
    LGFedAvg,
    Local,
    Oracle,
    PerFedAvg,
    Scaffold,
    Solo,
    State,
)
from umbel.data.clients import Pool, Population
from umbel.engines import LoopEngine, Simulator
from umbel.federation.door import Answered, Call, Cohort, Federation, NobodyAnswered, Silent
from umbel.nets.model import Model
from umbel.nets.wrap import wrap
from umbel.runs.checkpoint import RunFolder, Saved
from umbel.runs.run import rounds
from umbel.tree import Params, Tree

CLASSES, SHAPE, SEED = 3, (1, 3, 3), 5
SIZES = (13, 20, 7, 20, 16, 9)
TRUTH = (0, 1, 0, 1, 0, 1)
LOCAL = Local(lr=0.1, momentum=0.5, epochs=2, batch=5)


def tiny_model() -> Model:
    """9 - 8 - 3, with 107 parameters."""
    return wrap(lambda: nn.Sequential(nn.Flatten(), nn.Linear(9, 8), nn.ReLU(), nn.Linear(8, CLASSES)), SHAPE, CLASSES)


def tiny_population(order: tuple[int, ...] = tuple(range(len(SIZES)))) -> Population:
    """Two groups with other looks and other meanings; clients of unequal size; ten test rows each."""
    rng = np.random.default_rng(3)
    looks = 2 * rng.normal(size=(2, CLASSES, *SHAPE))
    xs, ys, train, test, at = [], [], [], [], 0
    for size, group in zip(SIZES, TRUTH, strict=True):
        shown = rng.integers(0, CLASSES, size + 10)
        shown[:CLASSES] = range(CLASSES)  # everybody holds every class
        xs.append(looks[group][shown] + 0.3 * rng.normal(size=(size + 10, *SHAPE)))
        ys.append(shown)
        train.append(np.arange(at, at + size))
        test.append(np.arange(at + size, at + size + 10))
        at += size + 10
    pool = Pool(np.concatenate(xs).astype(np.float32), np.concatenate(ys).astype(np.int64))
    return Population(
        pool, [train[i] for i in order], [test[i] for i in order], np.array([TRUTH[i] for i in order]), CLASSES,
        names=[f"c{i:03d}" for i in order],
    )


def chunked(net: Model, population: Population, seed: int = 0) -> Simulator:
    """Vectorised with a budget so small that a cohort takes several chunks."""
    return Simulator(net, population, seed, vectorise=True, budget=20_000)


def vectorised(net: Model, population: Population, seed: int = 0) -> Simulator:
    return Simulator(net, population, seed, vectorise=True)


def one_by_one(net: Model, population: Population, seed: int = 0) -> Simulator:
    return Simulator(net, population, seed, vectorise=False)


def flower(net: Model, population: Population, seed: int = 0) -> Federation:
    from umbel.flower.inprocess import InProcessFlower  # a GPU's machine may have no Flower, and needs the rest

    return InProcessFlower(net, population, seed)


ENGINES: dict[str, Callable[..., Federation]] = {
    "loop": LoopEngine, "simulator": vectorised, "chunked": chunked, "one-by-one": one_by_one, "flower": flower,
}


@dataclass(frozen=True)
class Entry:
    """What the contract test needs to know of a method."""

    make: Callable[[Local, tuple[int, ...]], Algorithm]
    cost: Callable[[int], tuple[int, int]]  # bytes of a model -> down, up of `play(rounds=2, ids=ASKED)`
    trivial: Callable[[Local, int], Algorithm] | None = None  # with n clients, equals FedAvg bit for bit
    finds_truth: bool = False


ASKED = (0, 1, 4)
N, M = len(SIZES), len(ASKED)
HEAD = 4 * (8 * CLASSES + CLASSES)  # bytes of the classifier


def _training(times: int, model: int) -> tuple[int, int]:
    return times * model, times * (model + 8)  # + 8: the size, one int64


def _plus(*costs: tuple[int, int]) -> tuple[int, int]:
    return sum(down for down, _ in costs), sum(up for _, up in costs)


def _averaging(model: int) -> tuple[int, int]:
    return _training(2 * M, model)


def _pretrained(model: int) -> tuple[int, int]:
    return _training(N + M, model)  # one round with everybody, one with the cohort


def _tested() -> tuple[int, int]:
    """What tests ask of everybody: three counts; parts of two rows or more of a class, five numbers and the class."""
    people = tiny_population()
    counts = np.array([np.bincount(people.pool.y[rows], minlength=CLASSES) for rows in people.train])
    rows = np.maximum(2, np.quantile(counts, 0.2, axis=0) // 4)
    parts = int(np.minimum(8, counts // rows).sum())
    return 0, N * 3 * 8 + parts * (5 * 4 + 8)


def _tried(model: int) -> tuple[int, int]:
    """A trial of one round by the cohort, and five scores of everybody: of two models, as they are and fine-tuned, and
    of the one that stayed at the client. A score is two float64 and a size.
    """
    return M * model + 4 * N * model, M * (model + 8) + M * 8 + 5 * N * 24


ONE = {"cut": "count", "clusters": 1}
ALL: dict[str, Entry] = {
    "fedavg": Entry(lambda local, truth: FedAvg(local=local), _averaging, lambda local, n: FedAvg(local=local)),
    "fedprox": Entry(lambda local, truth: FedProx(0.1, local=local), _averaging,
                     lambda local, n: FedProx(0.0, local=local)),
    "fedavg-ft": Entry(lambda local, truth: FedAvgFT(local=local), _averaging, lambda local, n: FedAvgFT(local=local)),
    "fedbn": Entry(lambda local, truth: FedBN(local=local), _averaging, lambda local, n: FedBN(local=local)),
    "fednova": Entry(lambda local, truth: FedNova(local=local),  # + 8: the number of steps
                     lambda model: _plus(_averaging(model), (0, 2 * M * 8))),
    "scaffold": Entry(lambda local, truth: Scaffold(local=replace(local, momentum=0.0)),  # model and control, both ways
                      lambda model: (2 * M * 2 * model, 2 * M * (2 * model + 8))),
    "perfedavg": Entry(lambda local, truth: PerFedAvg(outer=0.1, local=replace(local, momentum=0.0)), _averaging),
    "lg": Entry(lambda local, truth: LGFedAvg(1, local=local), lambda model: _training(2 * M, HEAD),
                lambda local, n: LGFedAvg(9, local=local)),
    "solo": Entry(lambda local, truth: Solo(local=local), lambda model: (0, 2 * M * 8)),
    "oracle": Entry(lambda local, truth: Oracle(truth, local=local), _averaging,
                    lambda local, n: Oracle((0,) * n, local=local), finds_truth=True),
    "auto": Entry(lambda local, truth: Auto(least=1, local=local),
                  lambda model: _plus(_tested(), _tried(model), _training(M, model))),
    "pacfl": Entry(  # a vector of nine numbers of each class, and three counts
        lambda local, truth: PACFL(local=local),
        lambda model: _plus((0, N * (3 * (36 + 8) + 8 + 24)), _tested(), _averaging(model)),
        lambda local, n: PACFL(**ONE, local=local), finds_truth=True),
    "flag": Entry(  # every client holds three classes: a vector of each, three counts, one update
        lambda local, truth: FLAG(gradient_epochs=2, trial="none", local=local),
        lambda model: _plus((0, N * (3 * (36 + 8) + 8 + 24)), _tested(), _training(N, model), _averaging(model)),
        lambda local, n: FLAG(gradient_epochs=2, **ONE, local=local), finds_truth=True),
    "fedclust": Entry(
        lambda local, truth: FedClust(warmup=4, local=local),
        lambda model: _plus((N * model, N * (HEAD + 8)), _tested(), _averaging(model)),
        lambda local, n: FedClust(warmup=2, **ONE, local=local), finds_truth=True),
    "cflgt": Entry(  # a trajectory is 2 x 3 float32
        lambda local, truth: CFLGT(pretrain=1, local=local),
        lambda model: _plus((N * model, N * 24), _tested(), _pretrained(model)),
        lambda local, n: CFLGT(pretrain=0, cut="gate", gate=1.0, local=local), finds_truth=True),
    "kmeans": Entry(lambda local, truth: KMeans(pretrain=1, local=local),
                    lambda model: _plus(_tested(), _pretrained(model)),
                    lambda local, n: KMeans(1, pretrain=1, local=local), finds_truth=True),
    "ifca": Entry(  # two models down for one choice, two losses up; everybody chooses once, then the cohort of round 1
        lambda local, truth: IFCA(2, local=local),
        lambda model: _plus(((N + M) * 2 * model, (N + M) * 16), _averaging(model)),
        lambda local, n: IFCA(1, local=local)),
    "cfl": Entry(  # splits in round 0: the three members that were not asked are asked then
        lambda local, truth: CFL(smallest=4, local=local),
        lambda model: _plus(_tested(), _training(N - M, model), _averaging(model)),
        lambda local, n: CFL(cut="norms", settled=0.0, local=local), finds_truth=True),
    "fedsoft": Entry(  # two centres and two shares down
        lambda local, truth: FedSoft(2, local=local),
        lambda model: _plus((N * 2 * model, N * 24), (2 * M * (2 * model + 16), 2 * M * (model + 8)))),
    "flhc": Entry(lambda local, truth: FLHC(pretrain=1, local=local),
                  lambda model: _plus(_tested(), _pretrained(model)),
                  lambda local, n: FLHC(pretrain=1, **ONE, local=local), finds_truth=True),
    "fedsem": Entry(  # in round 0 the cohort's local models are clustered; the other three are placed in round 1
        lambda local, truth: FedSEM(2, local=local),
        lambda model: _plus(_training(N - M, model), _averaging(model)),
        lambda local, n: FedSEM(1, weighted=True, local=local), finds_truth=True),
    "fedgroup": Entry(lambda local, truth: FedGroup(steps=10, local=local),
                      lambda model: _plus(_tested(), _training(N, model), _averaging(model)),
                      lambda local, n: FedGroup(1, local=local), finds_truth=True),
}


def play(algorithm: Algorithm, fed: Federation, rounds: int = 3, ids: tuple[int, ...] | None = None) -> State:
    """Some rounds as `run` does them, with the same cohort in each."""
    state = algorithm.init(fed, fed.seed)
    for index in range(rounds):
        waiting = (fed.online & (state.labels < 0)).nonzero().flatten()
        if len(waiting):
            with suppress(NobodyAnswered):
                state = algorithm.admit(fed, state, Cohort(waiting, index, "admit"))
        placed = [i for i in (ids or range(len(fed.names))) if fed.online[i] and state.labels[i] >= 0]
        state = algorithm.round(fed, state, Cohort(torch.tensor(placed), index))
    return state


def stopped(algorithm: Algorithm, fed: Federation, path: Path) -> Saved:
    """What a run of four rounds with half the clients leaves in its folder when it is stopped after the second."""
    folder = RunFolder.create(path, {})
    for done in rounds(algorithm, fed, rounds=4, fraction=0.5):
        folder.commit(done.index, done.state, *fed.memory(), done.record)
        if done.index == 1:
            break
    saved = folder.load(algorithm.state)
    folder.close()
    assert saved is not None
    return saved


def without(fed: Federation, *ids: int) -> Federation:
    """The same federation with some clients away."""
    fed.online[list(ids)] = False
    return fed


def models_by_name(fed: Federation, state: State) -> dict[str, Params]:
    """The model each client would use, wherever its method keeps it."""
    pages, _ = fed.memory()
    return {
        name: pages[name]["last"] if state.models and "last" in pages.get(name, {})
        else tree.take(state.models, int(state.labels[i]))
        for i, name in enumerate(fed.names)
    }


def gap(a: Params, b: Params) -> float:
    """The largest difference between two models."""
    return max(float((a[name] - b[name]).abs().max()) for name in a)


def silence(fed: Federation, *names: str) -> Federation:
    """Lose the answers of some clients on their way."""
    inner = fed.perform

    def perform(call: Call) -> Iterator[Answered | Silent]:
        for chunk in inner(call):
            assert isinstance(chunk, Answered)
            gone = [fed.names[int(call.cohort.ids[p])] in names for p in chunk.positions]
            yield from (Silent(int(p), "late") for p, lost in zip(chunk.positions, gone, strict=True) if lost)
            kept = ~torch.tensor(gone)
            if kept.any():
                yield Answered(chunk.positions[kept], tree.take(chunk.send, kept))

    fed.perform = perform  # type: ignore[method-assign]
    return fed


def tampered(fed: Federation, change: Callable[[Call, Tree], Tree], *names: str) -> Federation:
    """Let some clients, or all, send what `change` makes of each of their answers, stacked."""
    inner = fed.perform

    def perform(call: Call) -> Iterator[Answered | Silent]:
        for chunk in inner(call):
            for p in range(len(chunk.positions) if isinstance(chunk, Answered) else 0):
                own = Answered(chunk.positions[p : p + 1], tree.take(chunk.send, slice(p, p + 1)))
                theirs = fed.names[int(call.cohort.ids[own.positions[0]])] in (names or fed.names)
                yield own._replace(send=change(call, own.send)) if theirs else own
            if isinstance(chunk, Silent):
                yield chunk

    fed.perform = perform  # type: ignore[method-assign]
    return fed
