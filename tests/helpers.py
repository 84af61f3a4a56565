"""A tiny federation with clear groups, all engines, and one entry a method for the contract test."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from umbel import tree
from umbel.algorithms import Algorithm, FedAvg, FedAvgFT, FedProx, Local, Oracle, Solo, State
from umbel.data.clients import Pool, Population
from umbel.engines import LocalEngine, LoopEngine, Simulator
from umbel.federation import Answered, Call, Cohort, Silent
from umbel.models import Model, wrap
from umbel.tree import Params

CLASSES, SHAPE, SEED = 3, (1, 3, 3), 5
SIZES = (13, 20, 7, 20, 16, 9)
TRUTH = (0, 1, 0, 1, 0, 1)
LOCAL = Local(lr=0.1, momentum=0.5, epochs=2, batch=5)


def tiny_model() -> Model:
    """9 - 8 - 3, with 107 parameters."""
    return wrap(lambda: nn.Sequential(nn.Flatten(), nn.Linear(9, 8), nn.ReLU(), nn.Linear(8, CLASSES)), SHAPE, CLASSES)


def tiny_population(order: tuple[int, ...] = tuple(range(len(SIZES)))) -> Population:
    """Two groups with opposite labels; clients of unequal size; ten test rows each. `order` permutes the rows."""
    rng = np.random.default_rng(3)
    centres = rng.normal(size=(CLASSES, *SHAPE))
    xs, ys, train, test, at = [], [], [], [], 0
    for size, group in zip(SIZES, TRUTH, strict=True):
        shown = rng.integers(0, CLASSES, size + 10)
        xs.append(centres[shown] + 0.3 * rng.normal(size=(size + 10, *SHAPE)))
        ys.append((shown + group) % CLASSES)  # the same looks mean another label in the other group
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


ENGINES: dict[str, Callable[..., LocalEngine]] = {
    "loop": LoopEngine, "simulator": vectorised, "chunked": chunked, "one-by-one": one_by_one,
}


@dataclass(frozen=True)
class Entry:
    """What the contract test needs to know of a method."""

    make: Callable[[Local, tuple[int, ...]], Algorithm]
    bytes_per_round: Callable[[int, int], tuple[int, int]]  # (bytes of a model, clients asked) -> down, up
    trivial: Callable[[Local, int], Algorithm] | None = None  # with n clients, equals FedAvg bit for bit
    finds_truth: bool = False


def _both_ways(model: int, asked: int) -> tuple[int, int]:
    return model * asked, (model + 8) * asked  # + 8: the size, one int64


ALL: dict[str, Entry] = {
    "fedavg": Entry(lambda local, truth: FedAvg(local), _both_ways, lambda local, n: FedAvg(local)),
    "fedprox": Entry(lambda local, truth: FedProx(0.1, local), _both_ways, lambda local, n: FedProx(0.0, local)),
    "fedavg-ft": Entry(lambda local, truth: FedAvgFT(local), _both_ways, lambda local, n: FedAvgFT(local)),
    "solo": Entry(lambda local, truth: Solo(local), lambda model, asked: (0, 8 * asked)),
    "oracle": Entry(lambda local, truth: Oracle(truth, local), _both_ways,
                    lambda local, n: Oracle((0,) * n, local), finds_truth=True),
}


def play(algorithm: Algorithm, fed: LocalEngine, rounds: int = 3, ids: tuple[int, ...] | None = None) -> State:
    """Some rounds by hand, with the same cohort in each."""
    state = algorithm.init(fed, fed.seed)
    cohort = torch.tensor(ids) if ids is not None else torch.arange(len(fed.names))
    for index in range(rounds):
        state = algorithm.round(fed, state, Cohort(cohort, index))
    return state


def models_by_name(fed: LocalEngine, state: State) -> dict[str, Params]:
    """The model each client would use, wherever its method keeps it."""
    pages, _ = fed.memory()
    return {
        name: pages[name]["last"] if state.models and name in pages else tree.take(state.models, int(state.labels[i]))
        for i, name in enumerate(fed.names)
    }


def gap(a: Params, b: Params) -> float:
    """The largest difference between two models."""
    return max(float((a[name] - b[name]).abs().max()) for name in a)


def silence(fed: LocalEngine, *names: str) -> LocalEngine:
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
