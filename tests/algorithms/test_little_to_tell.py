"""Federations in which hardly anything can be known: every method that finds its number of clusters answers in words,
and never with a split by chance."""

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
import torch
from helpers import CLASSES, LOCAL, SHAPE, play, tiny_model

import umbel
from umbel.data.clients import Population
from umbel.engines import LoopEngine

METHODS = {
    "pacfl": umbel.PACFL(local=LOCAL),
    "flag": umbel.FLAG(gradient_epochs=2, validation_rounds=1, local=LOCAL),
    "fedclust": umbel.FedClust(warmup=2, local=LOCAL),
    "flhc": umbel.FLHC(pretrain=1, local=LOCAL),
}


@dataclass(frozen=True)
class Case:
    """Clients' training labels, whether all rows are equal, and what is said."""

    labels: tuple[tuple[int, ...], ...]
    said: str
    equal: bool = False


CASES = {
    "one client": Case(((0, 1, 2) * 6,), "there is one client"),
    "one row each": Case(((0,), (0,), (0,), (0,)), "too few rows to tell 4 clients apart"),
    "one row each, of other labels": Case(((0,), (1,), (2,)), "too few rows to tell 3 clients apart"),
    "a client with one row": Case((*(((0, 1, 2) * 6,) * 4), (1,)), "5 clients cannot be told apart"),
    "parts larger than clients": Case((*(((0, 1, 2) * 6,) * 3), (0, 1), (2, 1)), "5 clients cannot be told apart"),
    "all rows equal": Case((((0,) * 12),) * 4, "too few rows to tell 4 clients apart", equal=True),
}


@cache
def federation(name: str) -> LoopEngine:
    """Rows of one distribution, whatever the labels; with one row, clients hold it for training and for the test."""
    case, rng = CASES[name], np.random.default_rng(4)
    looks = 2 * rng.normal(size=(CLASSES, *SHAPE))
    sites = {}
    for i, labels in enumerate(case.labels):
        y = np.array(labels)
        x = (looks[y] + (0 if case.equal else 0.3) * rng.normal(size=(len(y), *SHAPE))).astype(np.float32)
        sites[f"c{i:03d}"] = (x, y, x[:1], y[:1])
    return LoopEngine(tiny_model(), Population.of_sites(sites, CLASSES), 3)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("method", METHODS)
def test_one_cluster_in_words(method, name):
    """Everybody is placed, in the one cluster, and the reason says why no more can be known."""
    fed = federation(name)
    state = play(METHODS[method], fed, 2)
    assert not state.labels.any()
    assert CASES[name].said in METHODS[method].why(state)


@pytest.mark.parametrize("method", METHODS)
def test_clients_without_a_shared_label_are_parted_where_rows_suffice(method):
    """Eighteen rows of one label are no accident, and a client of the same label is with its like."""
    rng = np.random.default_rng(4)
    looks = 2 * rng.normal(size=(CLASSES, *SHAPE))
    sites = {}
    for i, label in enumerate((0, 0, 1, 1, 2, 2)):
        x = (looks[label] + 0.3 * rng.normal(size=(20, *SHAPE))).astype(np.float32)
        y = np.full(20, label)
        sites[f"c{i:03d}"] = (x[:18], y[:18], x[18:], y[18:])
    state = play(replace(METHODS[method], **({"trial": "none"} if method == "flag" else {})),
                 LoopEngine(tiny_model(), Population.of_sites(sites, CLASSES), 3), 2)
    assert torch.equal(state.labels, torch.tensor([0, 0, 1, 1, 2, 2]))
    assert "have other classes" in METHODS[method].why(state)
