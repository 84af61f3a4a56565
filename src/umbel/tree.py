"""Arithmetic on named tensors.

`Params` is one model: a dict from name to tensor. `Stack` is many models side by side: the same dict with
one leading axis, over clients or over clusters. FedAvg, clustered or not, is `take`, train, `mean_by`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from umbel.ops import sums

Params: TypeAlias = dict[str, Tensor]
Stack: TypeAlias = dict[str, Tensor]
Tree: TypeAlias = dict[str, Any]  # tensors, or trees of them, by name


@dataclass(frozen=True)
class Held:
    """Models handed out by index without a copy: client i holds `models[index[i]]`.

    Engines gather what a chunk needs, score a shared model once, and bill every recipient.
    """

    models: Stack  # k models
    index: Tensor  # (n,) on the CPU

    def __post_init__(self) -> None:
        if len(self.index) and not 0 <= int(self.index.min()) <= int(self.index.max()) < count(self.models):
            labels = sorted(set(self.index.tolist()))
            raise IndexError(
                f"Every client must hold one of {count(self.models)} models. Got labels {labels}"
                " (-1 means not placed yet: admit the client first)."
            )

    def rows(self, positions: Tensor) -> Stack:
        """The models of these positions, gathered."""
        return take(self.models, self.index[positions].to(device_of(self.models)))


class Ragged(NamedTuple):
    """Answers whose first axis differs between clients, padded with zeros."""

    values: Tensor  # (n, r_max, ...)
    length: Tensor  # (n,) real rows of each


def each(function: Callable[..., Tensor], *trees: Tree) -> Tree:
    """Apply `function` leaf by leaf to trees of one structure."""
    first = trees[0]
    return {
        name: each(function, *(tree[name] for tree in trees)) if isinstance(leaf, dict)
        else function(*(tree[name] for tree in trees))
        for name, leaf in first.items()
    }


def stack(trees: Sequence[Tree]) -> Tree:
    """Put equal trees side by side along a new leading axis."""
    return each(lambda *leaves: torch.stack(leaves), *trees)


def unstack(models: Tree) -> list[Tree]:
    """Undo `stack`: one tree for each row, as views."""
    leaves = {name: unstack(leaf) if isinstance(leaf, dict) else leaf.unbind() for name, leaf in models.items()}
    return [dict(zip(leaves, row, strict=True)) for row in zip(*leaves.values(), strict=True)]


def cat(trees: Sequence[Tree]) -> Tree:
    """Join stacks along their leading axis."""
    return trees[0] if len(trees) == 1 else each(lambda *leaves: torch.cat(leaves), *trees)


def take(models: Tree, index: Tensor | int | slice) -> Tree:
    """Rows `index` of every leaf: `take(models, labels)` gives each client a copy of its cluster's model."""
    return each(lambda leaf: leaf[index], models)


def count(models: Tree) -> int:
    """How many models stand side by side."""
    leaf = next(iter(models.values()))
    return count(leaf) if isinstance(leaf, dict) else len(leaf)


def device_of(a: Tree) -> torch.device:
    """Where a tree lives."""
    leaf = next(iter(a.values()))
    return device_of(leaf) if isinstance(leaf, dict) else leaf.device


def flat(models: Stack, names: Iterable[str] | None = None) -> Tensor:
    """One row vector per model, (n, d), in the order of names: a model read from a file has another dict order.

    Of `names` only, as far as the models have them.
    """
    models = models if names is None else part(models, set(names) & set(models))
    return torch.cat([models[name].flatten(1) for name in sorted(models)], dim=1)


def part(models: Tree, names: Iterable[str]) -> Tree:
    """Only the leaves of these names."""
    return {name: models[name] for name in names}


def without(models: Tree, names: Iterable[str]) -> Tree:
    """All leaves but those of these names."""
    left_out = set(names)
    return {name: leaf for name, leaf in models.items() if name not in left_out}


def plus(a: Params, b: Params, scale: float | Tensor = 1.0, sign: int = 1) -> Params:
    """a + sign * scale * b, for the names in b; other names of a stay."""
    return {**a, **dict(zip(b, sums([a[name] for name in b], list(b.values()), scale, sign), strict=True))}


def minus(a: Params, b: Params) -> Params:
    """a - b, for the names in a."""
    return {name: a[name] - b[name] for name in a}


def zeros_like(a: Tree) -> Tree:
    """The same names and shapes, all zero."""
    return each(torch.zeros_like, a)


def to(a: Tree, device: torch.device | str) -> Tree:
    """The same tree on a device."""
    return each(lambda leaf: leaf.to(device), a)


def mix(models: Stack, weights: Tensor) -> Stack:
    """Weighted sums: `weights` (k, n) turns n models into k."""
    near = weights.to(device_of(models))
    of_type = {dtype: near.to(dtype) for dtype in {leaf.dtype for leaf in named(models).values()}}

    def one(leaf: Tensor) -> Tensor:
        rows = of_type[leaf.dtype] @ leaf.flatten(1)
        return rows.view(len(weights), *leaf.shape[1:])

    return each(one, models)


def mean_by(models: Stack, labels: Tensor, size: Tensor, otherwise: Stack) -> Stack:
    """Size-weighted mean of each label's models; a label that nobody holds keeps `otherwise`."""
    votes = one_hot(labels, count(otherwise)).T * size.double()  # (k, n)
    total = votes.sum(1)
    means = mix(models, votes / total.clamp(min=1)[:, None])
    if bool((total > 0).all()):
        return means
    seen = (total > 0).to(device_of(means))

    def one(mean: Tensor, old: Tensor) -> Tensor:
        return torch.where(seen.view(-1, *[1] * (mean.dim() - 1)), mean, old)

    return each(one, means, otherwise)


def nbytes(tree: Tree) -> int:
    """Payload of a tree: the bytes of its numbers, without names or framing."""
    return sum(nbytes(x) if isinstance(x, dict) else x.numel() * x.element_size() for x in tree.values())


def named(tree: Tree, prefix: str = "") -> dict[str, Tensor]:
    """Flatten to path names (`model/fc.weight`): the one codec for files and wires."""
    leaves: dict[str, Tensor] = {}
    for name, leaf in tree.items():
        path = f"{prefix}{name}"
        leaves |= named(leaf, f"{path}/") if isinstance(leaf, dict) else {path: leaf}
    return leaves


def nested(leaves: dict[str, Tensor]) -> Tree:
    """Undo `named`."""
    tree: Tree = {}
    for path, leaf in leaves.items():
        *parents, name = path.split("/")
        place = tree
        for parent in parents:
            place = place.setdefault(parent, {})
        place[name] = leaf
    return tree
