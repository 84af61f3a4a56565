"""Methods that group clients, on rows of every kind: they run, and engines agree, or they refuse in one sentence."""

from functools import cache

import numpy as np
import pytest
import torch
from helpers import ALL, ENGINES, SEED, gap, models_by_name, play, tiny_population
from torch import nn

import umbel
from umbel.data.clients import Pool, Population
from umbel.federation import ledger

LOCAL = umbel.Local(lr=0.05, momentum=0.5, epochs=2, batch=5)
SIZES, TESTS, TRUTH = (13, 20, 7, 20, 16, 9), 6, (0, 1, 0, 1, 0, 1)
GROUP = np.repeat(TRUTH, [size + TESTS for size in SIZES])  # of each row
VOCABULARY, PLACES = 6, 5


def dealt(x, y, objective, levels=()):
    """Six clients in two groups, whose rows come one after another."""
    ends = np.cumsum([size + TESTS for size in SIZES])
    rows = np.split(np.arange(ends[-1]), ends[:-1])
    return Population(Pool(x, y), [part[:-TESTS] for part in rows], [part[-TESTS:] for part in rows], np.array(TRUTH),
                      objective, levels=levels)


def numbers(objective):
    """Four numbers, two of which mean something, in a direction of its own in each group."""
    x = np.random.default_rng(1).normal(size=(len(GROUP), 4)).astype(np.float32)
    x[np.arange(len(x)), 2 * GROUP] += 4
    total = x.sum(1)
    return dealt(x, (total > 0).astype(np.int64) if isinstance(objective, umbel.Classify) else total, objective)


def table():
    """A number and two categories, whose levels are others in each group."""
    rng = np.random.default_rng(2)
    x = np.stack([rng.normal(size=len(GROUP)), rng.integers(0, 2, len(GROUP)) + 2 * GROUP,
                  rng.integers(0, 2, len(GROUP))], 1).astype(np.float32)
    return dealt(x, x[:, 2].astype(np.int64), umbel.Classify(2), (0, 4, 2))


def series():
    """Two features over six times; one of them leads in each group."""
    x = np.random.default_rng(3).normal(size=(len(GROUP), 6, 2)).astype(np.float32)
    x[np.arange(len(x)), :, GROUP] += 3
    return dealt(x, (x[:, -1].sum(1) > 3).astype(np.int64), umbel.Classify(2))


def texts():
    """Lines that count in one half of the tokens or in the other."""
    starts = np.random.default_rng(4).integers(0, 3, (len(GROUP), 1))
    line = (starts + np.arange(PLACES + 1)) % 3 + 3 * GROUP[:, None]
    return dealt(line[:, :-1].copy(), line[:, 1:].copy(), umbel.NextToken(VOCABULARY, PLACES))


class OneHot(nn.Module):
    """A table's categories as their levels, which an embedding of one's own could be as well."""

    def forward(self, x):
        levels = [(x[:, 1:2] == torch.arange(4)), (x[:, 2:] == torch.arange(2))]
        return torch.cat([x[:, :1], *[each.float() for each in levels]], 1)


def dense(inputs, outputs):
    return lambda: nn.Sequential(nn.Flatten(), nn.Linear(inputs, 8), nn.ReLU(), nn.Linear(8, outputs))


KINDS = {
    "images": (tiny_population, dense(9, 3)),
    "numbers": (lambda: numbers(umbel.Classify(2)), dense(4, 2)),
    "regression": (lambda: numbers(umbel.Regress()), dense(4, 1)),
    "bins": (lambda: numbers(umbel.Regress(bins=2)), dense(4, 1)),
    "table": (table, lambda: nn.Sequential(OneHot(), nn.Linear(7, 8), nn.ReLU(), nn.Linear(8, 2))),
    "series": (series, dense(12, 2)),
    "texts": (texts, lambda: nn.Sequential(nn.Embedding(VOCABULARY, 8), nn.Linear(8, VOCABULARY))),
}
NO_FORCES = "Gradient trajectories are forces of classes, and this model predicts none"
REFUSED = {  # all else runs
    ("cflgt", "regression"): NO_FORCES, ("cflgt", "bins"): NO_FORCES, ("cflgt", "texts"): NO_FORCES,
    ("flag", "regression"): "class by class, and the targets are none: give the objective bins",
}


@cache
def federation(kind):
    """The clients of one kind, and their network."""
    people, network = KINDS[kind]
    fed = umbel.simulate(people(), model=network, device="cpu")
    return fed.net, fed.clients.population


def agreeing(method, kind):
    """The states and bytes of two engines, which are the same."""
    net, people = federation(kind)
    feds = [ENGINES[engine](net, people, SEED) for engine in ("loop", "simulator")]
    a, b = (play(method, fed, rounds=2) for fed in feds)
    assert torch.equal(a.labels, b.labels)
    mine, theirs = (models_by_name(fed, state) for fed, state in zip(feds, (a, b), strict=True))
    assert max(gap(mine[client], theirs[client]) for client in mine) <= 1e-5
    lines = [ledger.totals(fed.ledger.lines) for fed in feds]
    assert lines[0] == lines[1]
    return a, ledger.summary(lines[0])


@pytest.mark.parametrize("name", ["pacfl", "flag", "fedclust", "cflgt", "ifca", "cfl", "kmeans"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_method_runs_on_every_kind_or_says_why_not(name, kind):
    """The same labels, bytes and models on both engines; or one sentence."""
    method = ALL[name].make(LOCAL, TRUTH)
    if says := REFUSED.get((name, kind)):
        net, people = federation(kind)
        for engine in ("loop", "simulator"):
            with pytest.raises(umbel.UmbelError, match=says):
                play(method, ENGINES[engine](net, people, SEED), rounds=1)
        return
    agreeing(method, kind)


@pytest.mark.parametrize("signature", ["raw", "embedding", "counts"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("by_class", [False, True])
def test_pacfl_groups_by_every_signature_that_fits(signature, kind, by_class):
    """Groups that differ in their rows are told apart by raw numbers, by counts, and by what a model makes of them."""
    names = kind in ("table", "texts")
    says = {(True, "raw"): "take signature=", (False, "counts"): "take signature="}.get((names, signature))
    if by_class and kind == "regression":
        says = says or "class by class, and the targets are none"
    method = umbel.PACFL(signature=signature, rank=1, angle="mean", cut="count", clusters=2, per_class=by_class,
                         local=LOCAL)
    if says:
        net, people = federation(kind)
        with pytest.raises(umbel.UmbelError, match=says):
            play(method, ENGINES["loop"](net, people, SEED), rounds=1)
        return
    state, _ = agreeing(method, kind)
    if kind != "images" and not (by_class and signature == "embedding"):  # of few rows, by a model that learnt nothing
        assert state.labels.tolist() == list(TRUTH)


def test_the_model_that_embeds_travels_and_is_billed():
    """Down to everybody, once; up go at most `rank` vectors of as many numbers as enter the head."""
    net, people = federation("texts")
    fed = ENGINES["loop"](net, people, SEED)
    umbel.PACFL(rank=2, cut="silhouette", local=LOCAL).init(fed, SEED)
    moved = ledger.summary(ledger.totals(fed.ledger.lines))
    assert moved["down"] == len(SIZES) * 4 * net.parameters
    assert moved["up"] == len(SIZES) * (2 * (4 * 8 + 8) + 8)
    fed = ENGINES["loop"](net, people, SEED)
    umbel.PACFL(signature="counts", rank=1, cut="silhouette", local=LOCAL).init(fed, SEED)
    moved = ledger.summary(ledger.totals(fed.ledger.lines))
    assert (moved["down"], moved["up"]) == (0, len(SIZES) * (4 * VOCABULARY + 8 + 8))


def test_norms_that_stay_at_the_clients_do_not_travel_to_embed():
    """A client completes the anchor by its own."""
    def network():
        return nn.Sequential(nn.Flatten(), nn.Linear(9, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    fed = umbel.simulate(tiny_population(), model=network, device="cpu")
    method = umbel.PACFL(signature="embedding", angle="mean", cut="silhouette",
                         local=umbel.Local(epochs=1, norms="private"))
    method.init(fed, SEED)
    travelling = fed.net.parameters - 4 * 8  # weight, bias, mean and variance of each
    assert ledger.summary(ledger.totals(fed.ledger.lines))["down"] == len(SIZES) * 4 * travelling
