"""What sites tell so that a table can be prepared: sums of their numbers, names in their categories with counts.

Training rows only, through the door as everything else, so that it is billed. Names travel as hashes.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from umbel.data.prepare import Preparation, Sums
from umbel.errors import UmbelError
from umbel.federation.door import Cohort, Federation
from umbel.federation.phases import PREPARE
from umbel.federation.tasks import SIZE, Client, Leaf, Of, Plain, Reply, UpTo, register
from umbel.nets.model import Model
from umbel.nets.objective import Regress
from umbel.tree import Tree

MOST_LEVELS = 2**20  # of all categories of one site


def _column_sums(net: Model, client: Client, *, numbers: tuple[int, ...], moments: bool, target: bool) -> Reply:
    told = Sums.of(client.x.cpu().numpy()[:, list(numbers)])
    send: Tree = {"column_counts": torch.from_numpy(told.known), "size": client.size.cpu()}
    if moments:
        send |= {"column_sums": torch.from_numpy(told.sum), "column_squares": torch.from_numpy(told.squares)}
    if target:
        y = client.y.double().cpu().reshape(-1)
        send["target_sums"] = torch.stack([y.sum(), (y**2).sum()])
    return Reply(send)


def _promised_sums(net: Model, *, numbers: tuple[int, ...], moments: bool, target: bool) -> Tree:
    wide = Leaf((len(numbers),), torch.float64)
    return {"column_counts": Leaf((len(numbers),), torch.int64, least=0, most=Of("size")), "size": SIZE,
            **({"column_sums": wide, "column_squares": wide} if moments else {}),
            **({"target_sums": Leaf((2,), torch.float64)} if target else {})}


def _levels(net: Model, client: Client, *, categories: tuple[int, ...]) -> Reply:
    found: list[Tensor] = []
    for j in categories:
        values, counts = np.unique(client.x[:, j][~client.x[:, j].isnan()].cpu().numpy(), return_counts=True)
        found.append(torch.from_numpy(np.stack([np.full_like(counts, j), values.astype(np.int64), counts], 1)))
    return Reply({"level_counts": torch.cat(found)})


def _promised_levels(net: Model, *, categories: tuple[int, ...]) -> Tree:
    return {"level_counts": Leaf((UpTo(MOST_LEVELS), 3), torch.int64, least=0)}


column_sums = register(Plain("column_sums", _column_sums, answers=_promised_sums,
                             options=("numbers", "moments", "target")))
"""Of each column of numbers: how many values, and where `moments` are asked their sum and the sum of their squares."""

level_counts = register(Plain("level_counts", _levels, answers=_promised_levels, options=("categories",)))
"""Of each category: (column, hash of a name, rows) of every name that the site's training rows have."""


def ask(fed: Federation, columns: Sequence[str], levels: Sequence[int], scaling: str) -> Preparation:
    """Make a preparation of what all clients tell that are there at the start."""
    categories = tuple(j for j, count in enumerate(levels) if count)
    numbers = tuple(j for j in range(len(columns)) if j not in categories)
    cohort = Cohort(torch.nonzero(fed.online).flatten(), 0, PREPARE)
    goal = fed.net.objective
    target = isinstance(goal, Regress) and goal.columns == 1 and (goal.centre, goal.scale) == (0.0, 1.0)
    told = fed.map(column_sums, cohort, numbers=numbers, moments=scaling == "federated", target=target).answers
    count, rows = told["column_counts"].sum(0).numpy(), int(told["size"].sum())
    parts = [told[name].sum(0).cpu().numpy() if name in told else np.zeros(len(numbers))
             for name in ("column_sums", "column_squares")]
    heard: dict[int, set[int]] = {}
    if categories:
        answers = fed.map(level_counts, cohort, categories=categories).answers["level_counts"]
        for own, length in zip(answers.values.tolist(), answers.length.tolist(), strict=True):
            for column, key, _ in own[:length]:
                heard.setdefault(column, set()).add(key)
    if stray := set(heard) - set(categories):
        raise UmbelError(f"A site told of a category in column {min(stray)}, which holds numbers: it has another"
                         " table.")
    known = {j: sorted(keys) for j, keys in heard.items()}
    made = Preparation.made(columns, levels, Sums(count, *parts), rows - count, known, scaling)
    if target:
        assert isinstance(goal, Regress)
        mean, std = Sums(np.array([rows]), *(told["target_sums"].sum(0).cpu().numpy().reshape(2, 1))).moments
        goal = replace(goal, centre=float(mean[0]), scale=float(std[0]))
    return replace(made, objective=goal)
