"""Every method on a table with categories, on numbers to be predicted, on series and on texts: it runs and the engines
agree, or it refuses in one sentence."""

from functools import cache

import numpy as np
import pytest
import torch
from helpers import ALL, ENGINES, SEED, gap, models_by_name, play
from tokens import sentences

import umbel
from umbel.data.clients import Pool, Population
from umbel.federation import ledger
from umbel.nets.model import Model

LOCAL = umbel.Local(lr=0.02, momentum=0.5, epochs=2, batch=5)
SIZES, TRUTH = (13, 20, 7, 20, 16, 9), (0, 1, 0, 1, 0, 1)
TESTS = 6  # rows of each client


def dealt(x: np.ndarray, y: np.ndarray, objective: umbel.Classify | umbel.Regress | umbel.NextToken | int,
          **about: tuple[int, ...]) -> Population:
    """Six clients of unequal size, whose rows come one after another."""
    ends = np.cumsum([size + TESTS for size in SIZES])
    rows = np.split(np.arange(ends[-1]), ends[:-1])
    return Population(Pool(x, y), [part[:-TESTS] for part in rows], [part[-TESTS:] for part in rows], np.array(TRUTH),
                      objective, **about)


def groups() -> np.ndarray:
    """(rows,) the true group of each row."""
    return np.repeat(TRUTH, [size + TESTS for size in SIZES])


def table() -> Population:
    """Two numbers and two categories, three classes; in one group the first category turns the meaning round."""
    rng, group = np.random.default_rng(1), groups()
    x = rng.normal(size=(len(group), 4)).astype(np.float32)
    x[:, 1], x[:, 3] = rng.integers(0, 3, len(group)), rng.integers(0, 2, len(group))
    return dealt(x, (x[:, 1].astype(np.int64) + group * (1 + (x[:, 0] > 0))) % 3, 3, levels=(0, 3, 0, 2))


def numbers() -> Population:
    """One number out of four; in the second group it runs the other way."""
    rng, group = np.random.default_rng(2), groups()
    x = rng.normal(size=(len(group), 4)).astype(np.float32)
    y = ((1 - 2 * group) * (x[:, 0] + x[:, 1])).astype(np.float32)
    return dealt(x + group[:, None].astype(np.float32), y, umbel.Regress(bins=2))


def series() -> Population:
    """Two numbers ahead of six steps of three features."""
    rng, group = np.random.default_rng(3), groups()
    x = rng.normal(size=(len(group), 6, 3)).astype(np.float32).cumsum(1) / 3
    y = np.stack([x[:, -1, 0], (1 - 2 * group) * x[:, -1, 1]], 1).astype(np.float32)
    return dealt(x, y, umbel.Regress(columns=2, bins=2))


def texts() -> Population:
    """Lines that count up or down."""
    x, y = sentences(1 - 2 * groups(), np.random.default_rng(4))
    return dealt(x, y, umbel.NextToken(5, 6))


KINDS = {"table-mlp": (table, "mlp"), "table-linear": (table, "linear"), "numbers-mlp": (numbers, "mlp"),
         "series-gru": (series, "gru"), "series-tcn": (series, "tcn"), "texts-gru": (texts, "gru")}
kinds = pytest.mark.parametrize("kind", [  # a second network of the same rows shows little more
    pytest.param(kind, marks=pytest.mark.slow) if kind in ("table-linear", "series-tcn") else kind for kind in KINDS])
CLASSES = "Gradient trajectories are forces of classes, and this model predicts none"
REFUSED = {  # by what a person is told; all else runs
    ("cflgt", "numbers"): CLASSES, ("cflgt", "series"): CLASSES, ("cflgt", "texts"): CLASSES,
}


@cache
def federation(kind: str) -> tuple[Model, Population]:
    """The clients of one kind, and their network."""
    people, name = KINDS[kind]
    fed = umbel.simulate(people(), model=name, device="cpu")
    return fed.net, fed.clients.population  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ALL)
@kinds
def test_every_method_runs_on_every_kind_or_says_why_not(kind, name):
    """On the loop and side by side: the same labels and bytes, models within 1e-5; or the same sentence."""
    net, people = federation(kind)
    method = ALL[name].make(LOCAL, TRUTH)
    feds = [ENGINES[engine](net, people, SEED) for engine in ("loop", "simulator")]
    says = REFUSED.get((name, kind.split("-")[0]))
    if says:
        for fed in feds:
            with pytest.raises(umbel.UmbelError, match=says):
                play(method, fed, rounds=2)
        return
    a, b = (play(method, fed, rounds=2) for fed in feds)
    assert torch.equal(a.labels, b.labels)
    mine, theirs = (models_by_name(fed, state) for fed, state in zip(feds, (a, b), strict=True))
    assert max(gap(mine[client], theirs[client]) for client in mine) <= 1e-5
    assert all(bool(leaf.isfinite().all()) for model in mine.values() for leaf in model.values())
    assert ledger.totals(feds[0].ledger.lines) == ledger.totals(feds[1].ledger.lines)
