"""Does a short trial foretell whether clusters pay? True groups and cuts by chance, and what long training makes of it.

    python benchmarks/paying.py [--seeds 0:2] [--only TEXT] [--rounds 15]

A column `r x e` is a trial of r rounds of e epochs: gain in validation loss (one model less clusters) over its error,
a mean over seeds, then in how many seeds clusters paid / one model was better. The last column is what clusters gain in
points of accuracy on test rows, after --rounds rounds of 5 epochs of FedAvg and of the same clusters (0: leave it out).
"""

from dataclasses import replace
from functools import lru_cache
from typing import Annotated, NamedTuple

import numpy as np
import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import nn

import umbel
from umbel.algorithms.sweep import pays

TRIALS = ((1, 1), (5, 1), (1, 5), (1, 10), (2, 10))  # rounds, epochs


class Case(NamedTuple):
    """A federation; `iid` ones are cut by chance, others as they truly are."""

    data: str
    scenario: str
    clients: int
    rows: int  # training rows of the set that are dealt out; 0 = all


CASES = [
    *(Case(data, "iid", clients, clients * rows) for data, clients, rows in (
        ("digits", 4, 100), ("digits", 8, 100), ("digits", 20, 70), ("mnist", 3, 100), ("mnist", 4, 400),
        ("mnist", 8, 200), ("mnist", 20, 20), ("mnist", 20, 60), ("mnist", 50, 60), ("fashion-mnist", 3, 300),
        ("fashion-mnist", 6, 20), ("fashion-mnist", 8, 60), ("fashion-mnist", 20, 60), ("fashion-mnist", 30, 100))),
    Case("digits", "rotation-4:per_label=10", 8, 0), Case("digits", "swap-6:per_label=10", 12, 0),
    *(Case(data, f"{kind}:per_label={rows}", clients, 0)
      for data in ("mnist", "fashion-mnist") for rows in (20, 100)
      for kind, clients in (("rotation-4", 16), ("swap-6", 18), ("feature-3", 12), ("label-4", 16))),
    Case("mnist", "flag:labels=0.2,groups=5", 20, 3000), Case("fashion-mnist", "flag:labels=0.3,groups=3", 20, 3000),
    Case("fashion-mnist", "flag:labels=0.2,groups=10,alpha=0.25", 30, 4500),
    Case("mnist", "flag:labels=0.3,groups=3+rotation-4", 24, 3600),
]


def small() -> nn.Module:
    """25,000 parameters: the simulator trains all clients side by side on a CPU."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10))


@lru_cache
def rows_of(name: str) -> umbel.Dataset:
    return umbel.open_dataset(name)


def federation(case: Case, seed: int) -> umbel.Federation:
    """Of a random part of the set, and 2,000 of its test rows."""
    data, rng = rows_of(case.data), np.random.default_rng([seed, 7])
    train = rng.permutation(len(data.y_train))[: case.rows or None]
    test = rng.permutation(len(data.y_test))[:2000]
    part = replace(data, x_train=data.x_train[train], y_train=data.y_train[train], x_test=data.x_test[test],
                   y_test=data.y_test[test], part="")
    model = "mlp" if case.data == "digits" else small
    return umbel.simulate(part, scenario=case.scenario, clients=case.clients, model=model, seed=seed, device="cpu")


def cut(case: Case, fed: umbel.Federation, seed: int) -> torch.Tensor:
    """The true groups; by chance two to four clusters, of unlike size in a third of the seeds."""
    n, rng = case.clients, np.random.default_rng([seed, 11])
    if case.scenario != "iid":
        labels = fed.provenance.truth
    else:
        k = min(n, 2 + seed % 3)
        share = np.arange(1, k + 1) / np.arange(1, k + 1).sum()
        labels = rng.permutation(np.append(np.arange(k), rng.choice(k, n - k, p=share)) if seed % 3 == 0 else
                                 np.arange(n) % k)
    return torch.from_numpy(np.unique(labels, return_inverse=True)[1])


def long_gain(fed: umbel.Federation, labels: torch.Tensor, rounds: int) -> float:
    """Points of accuracy by which clusters beat one model in the end."""
    local = umbel.Local(epochs=5)
    both = [umbel.run(method, fed, rounds=rounds, fine_tune=0) for method in (
        umbel.FedAvg(local=local), umbel.Oracle(tuple(labels.tolist()), local=local))]
    return 100 * (both[1].score - both[0].score)


def main(seeds: Annotated[str, typer.Option(help="from:to")] = "0:2", only: str = "", rounds: int = 15) -> None:
    """Print the table, case by case."""
    first, last = map(int, seeds.split(":"))
    table = Table("case", *[f"{r} x {e}" for r, e in TRIALS], "in the end")
    for case in CASES:
        name = f"{case.data} {case.scenario}, {case.clients} clients" + (f", {case.rows} rows" if case.rows else "")
        if only not in name:
            continue
        cells, ends = [[] for _ in TRIALS], []
        for seed in range(first, last):
            fed = federation(case, seed)
            labels = cut(case, fed, seed)
            for cell, (r, e) in zip(cells, TRIALS, strict=True):
                cell.append(pays(fed, torch.arange(case.clients), labels, umbel.Local(), case.clients, r, e))
            if rounds:
                ends.append(long_gain(fed, labels, rounds))
        table.add_row(name, *(
            f"{np.mean([found.gain / found.error for found in cell]):.1f}  {sum(found.better for found in cell)}/"
            f"{sum(found.worse for found in cell)}" for cell in cells),
            f"{np.mean(ends):+.1f}" if ends else "")
    Console(width=180).print(table)


if __name__ == "__main__":
    typer.run(main)
