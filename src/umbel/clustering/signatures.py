"""Tasks by which a client describes itself, so that a server can tell who is like whom.

Two signatures need no task of their own: an update is what `train` sends minus the model it started from, and the
classifier's weights are `train` with `send=net.head_names`.

Subspaces are of rows as vectors, and what a row is as a vector is said by `signature`: its numbers as they are ("raw"),
what the anchor model makes of it before its classifier ("embedding"), or how often each token or level of a category is
in it ("counts").
"""

from typing import Any

import numpy as np
import scipy.linalg
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from umbel.errors import UmbelError
from umbel.federation.tasks import ROWS, SIZE, Client, Leaf, Of, Plain, Release, Reply, Rows, UpTo, register
from umbel.nets.model import Model
from umbel.nets.objective import NextToken
from umbel.tree import Params, Tree

MOST_RANK = 32  # vectors of one class: methods take 3 to 5, and with as many as there are rows, rows can be rebuilt
MOST_COUNTED = 2**16  # tokens or levels: every vector of counts has a number for each
SIGNATURES = ("raw", "embedding", "counts")
LONGEST = 1.01  # of a number of a unit vector that an uplink may have rounded
RANK_TOLERANCE = 1e-6  # singular values below this share of the largest are rounding noise, and so are their vectors


def leading_vectors(data: Tensor, rank: int) -> Tensor:
    """The first `rank` left singular vectors of `data`.T as rows, (r, F), for data (rows, F); r counts real ones only.

    By the smaller Gram matrix in float64, which costs m^2 F instead of an SVD. The sign of a singular vector is
    arbitrary: here its largest entry is positive, so that equal data give equal vectors.
    """
    x = data.double().cpu().numpy()
    m, features = x.shape
    tall = m > features
    gram = x.T @ x if tall else x @ x.T
    top = min(rank, len(gram))
    if not top:
        return torch.zeros(0, features)
    if not np.isfinite(gram).all():
        return torch.full((1, features), torch.nan)  # the federation refuses such an answer and says why
    squares, vectors = scipy.linalg.eigh(gram, subset_by_index=[len(gram) - top, len(gram) - 1])
    squares, vectors = squares[::-1], vectors[:, ::-1]
    real = squares > (RANK_TOLERANCE**2) * max(squares[0], 0.0)
    real &= squares > 0
    basis = (vectors if tall else x.T @ vectors)[:, real]  # (F, r)
    basis /= np.linalg.norm(basis, axis=0)
    basis *= np.sign(basis[np.abs(basis).argmax(0), np.arange(basis.shape[1])])
    return torch.from_numpy(np.ascontiguousarray(basis.T, dtype=np.float32))


def _refuse_rank(rank: int) -> None:
    """At the client, whoever asks."""
    if not 1 <= rank <= MOST_RANK:
        raise UmbelError(f"A client describes its rows by 1 to {MOST_RANK} vectors, of each class at most. Asked for"
                         f" were {rank}.")


def signature_for(net: Model, asked: str) -> str:
    """What rows are as vectors: as asked, or by the kind of data: embedding of tokens and categories, raw of others."""
    names = net.tokens or any(net.levels)
    if asked == "auto":
        return "embedding" if names else "raw"
    if asked == "raw" and names:
        raise UmbelError(f"Raw rows are vectors where they are numbers, and {'tokens' if net.tokens else 'categories'}"
                         " are names: take signature=embedding or signature=counts.")
    if asked == "counts":
        counted(net)
    return asked


def counted(net: Model) -> int:
    """How many tokens or levels of categories a row is counted by."""
    if net.tokens:
        goal = net.objective
        kinds = goal.vocabulary if isinstance(goal, NextToken) else max(net.levels, default=0)
    else:
        kinds = sum(net.levels)
    if not kinds:
        raise UmbelError("Counts are of tokens or of categories, and of this model's inputs it is not known how many"
                         " there are: take signature=raw of numbers, or signature=embedding.")
    if kinds > MOST_COUNTED:
        raise UmbelError(f"Counts are of at most {MOST_COUNTED:,} tokens or levels. Got {kinds:,}: take"
                         " signature=embedding.")
    return kinds


def counts_of(net: Model, x: Tensor) -> Tensor:
    """(rows, kinds) how often each token is in a row; of a table, 1 for the level of each category, 0 for the others.

    A table's columns of numbers are left out.
    """
    if net.tokens:
        return torch.zeros(len(x), counted(net)).scatter_add_(1, x.cpu().flatten(1), torch.ones(x.flatten(1).shape))
    rows = x.cpu().reshape(len(x), -1, len(net.levels))  # a series has columns at every time
    parts = [one_hot(rows[..., k].long(), levels).sum(1) for k, levels in enumerate(net.levels) if levels]
    return torch.cat(parts, 1).float()


def features_of(net: Model, params: Params, x: Tensor) -> Tensor:
    """(rows, d) what enters the classifier; where it acts at every place of a row, the mean over the places."""
    features = net.embed(params, x)
    return features.flatten(1, -2).mean(1) if len(net.objective.out_shape) > 1 else features.flatten(1)


def _as_vectors(net: Model, x: Tensor, signature: str) -> Tensor:
    return counts_of(net, x) if signature == "counts" else x.flatten(1)


def _subspace(vectors: Tensor, size: Tensor, rank: int) -> Reply:
    _refuse_rank(rank)
    basis = leading_vectors(vectors, rank)
    return Reply({"basis": basis, "basis_class": torch.full((len(basis),), -1), "size": size})


def _subspaces(vectors: Tensor, kinds: Tensor, size: Tensor, rank: int, share: float) -> Reply:
    """`rank` vectors of each class that a client holds; with `share`, p = round(share * n_c), between 1 and `rank`."""
    _refuse_rank(rank)
    bases, classes = [], []
    for label in sorted(set(kinds.tolist())):
        rows = vectors[kinds == label]
        most = min(rank, max(1, round(share * len(rows)))) if share else rank
        bases.append(leading_vectors(rows, most))
        classes += [label] * len(bases[-1])
    basis = torch.cat(bases) if bases else torch.zeros(0, vectors.shape[1])
    return Reply({"basis": basis, "basis_class": torch.tensor(classes, dtype=torch.long), "size": size})


def _whole(net: Model, client: Client, *, rank: int, signature: str = "raw") -> Reply:
    return _subspace(_as_vectors(net, client.x, signature), client.size, rank)


def _by_class(net: Model, client: Client, *, rank: int, share: float = 0.0, signature: str = "raw") -> Reply:
    return _subspaces(_as_vectors(net, client.x, signature), kinds_of(net, client.y), client.size, rank, share)


def _embedded(net: Model, params: Params, x: Tensor, y: Tensor) -> Tree:
    return {"features": features_of(net, params, x), "kind": kinds_of(net, y)}


def _whole_embedded(net: Model, values: Tree, *, rank: int, **_: Any) -> Reply:
    return _subspace(values["features"], torch.tensor(len(values["kind"])), rank)


def _by_class_embedded(net: Model, values: Tree, *, rank: int, share: float = 0.0, **_: Any) -> Reply:
    kinds = values["kind"]
    return _subspaces(values["features"], kinds, torch.tensor(len(kinds)), rank, share)


def kinds_of(net: Model, y: Tensor) -> Tensor:
    """(rows,) the class of each row, or the bin of its number."""
    return torch.from_numpy(net.objective.groups_of(y.cpu().numpy())).to(y.device)


def _vectors(rank: int, width: int, classes: int = 0) -> Tree:
    """Unit vectors of so many numbers: `rank` of all rows, of "class" -1, or of each class."""
    most = UpTo(rank * max(1, classes))
    low, high = (0, classes - 1) if classes else (-1, -1)
    return {"basis": Leaf((most, width), least=-LONGEST, most=LONGEST),
            "basis_class": Leaf((most,), torch.int64, least=low, most=high), "size": SIZE}


def width(net: Model, signature: str = "raw") -> int:
    """Numbers of a row as a vector, raw or counted."""
    signature_for(net, signature)
    return counted(net) if signature == "counts" else net.features


def width_embedded(net: Model) -> int:
    """Numbers of a row as the model embeds it."""
    x = net.blank(1, net.mean.device)
    return features_of(net, dict(net.module.named_parameters()), x).shape[1]


principal_vectors = register(Plain(
    "principal_vectors", _whole, options=("rank", "signature"),
    answers=lambda net, rank, signature="raw": _vectors(rank, width(net, signature))))
"""The subspace of a client's rows, raw or counted: one SVD of all of them (PACFL as printed)."""

class_vectors = register(Plain(
    "class_vectors", _by_class, options=("rank", "share", "signature"),
    answers=lambda net, rank, share=0.0, signature="raw": _vectors(rank, width(net, signature), net.classes)))
"""One SVD of each class's rows, raw or counted (PACFL's code, FLAG)."""

principal_embedded = register(Rows(
    "principal_embedded", _embedded, _whole_embedded, options=("rank", "become"),
    answers=lambda net, rank, **_: _vectors(rank, width_embedded(net))))
"""The subspace of a client's rows as the model that was sent embeds them."""

class_embedded = register(Rows(
    "class_embedded", _embedded, _by_class_embedded, options=("rank", "share", "become"),
    answers=lambda net, rank, **_: _vectors(rank, width_embedded(net), net.classes)))
"""The same, of each class."""


def _count(net: Model, client: Client) -> Release:
    """A row more or less moves one count by one."""
    counts = torch.bincount(kinds_of(net, client.y).cpu(), minlength=net.classes)
    return Release({"counts": counts.double()}, sensitivity=1.0)


def _counted(net: Model, statistic: Tree) -> Reply:
    return Reply({"counts": statistic["counts"].round().clamp(min=0).long()})


class_counts = register(Plain(
    "class_counts", _count,
    answers=lambda net, **_: {"counts": Leaf((net.classes,), torch.int64, least=0, total=Of(ROWS))},
    after=_counted))
"""How many rows of each class a client holds (FLAG's weights)."""


def _forces(net: Model, params: Params, x: Tensor, y: Tensor) -> Tree:
    """(rows, 2, classes): z1_c = [y=c] (1 - P_c) v pulls, z2_c = [y!=c] P_c v pushes; v's mean over its d features."""
    features = net.embed(params, x)
    chance = net.classify(params, features).softmax(1)  # P
    own = one_hot(y, net.objective.classes).to(chance.dtype)
    strength = features.flatten(1).mean(1)[:, None]
    return {"force": torch.stack([own * (1 - chance), (1 - own) * chance], dim=1) * strength[:, None]}


def _trajectory(net: Model, values: Tree, *, total: bool = False, **_: Any) -> Reply:
    force = values["force"].double()
    return Reply({"trajectory": (force.sum(0) if total else force.mean(0)).float()})


def _forces_of_classes(net: Model, **_: Any) -> Tree:
    if not net.objective.classes:
        raise UmbelError("Gradient trajectories are forces of classes, and this model predicts none: take another"
                         " method.")
    return {"trajectory": Leaf((2, net.objective.classes))}


trajectory = register(Rows(
    "trajectory", _forces, _trajectory, answers=_forces_of_classes,
    options=("total", "become")))
"""Pulling and pushing forces of each class on the classifier, in one forward pass (CFLGT)."""


def _row_losses(net: Model, params: Params, x: Tensor, y: Tensor) -> Tree:
    return {"loss": net.objective.row_loss(net.logits(params, x), y)}


def _mean_losses(net: Model, values: Tree, **_: Any) -> Reply:
    return Reply({"losses": values["loss"].double().mean(1)})


def _votes(net: Model, values: Tree, **_: Any) -> Reply:
    loss = values["loss"]  # (k, rows)
    best = loss.nan_to_num(nan=torch.inf).argmin(0)
    return Reply({"votes": torch.bincount(best, minlength=len(loss)), "size": torch.tensor(loss.shape[1])})


losses = register(Rows(
    "losses", _row_losses, _mean_losses, answers=lambda net, k, **_: {"losses": Leaf((k,), torch.float64)},
    options=("k",)))
"""Mean loss of each of k models (IFCA)."""

votes = register(Rows(
    "votes", _row_losses, _votes, options=("k",),
    answers=lambda net, k, **_: {
        "votes": Leaf((k,), torch.int64, least=0, total=Of("size")), "size": SIZE}))
"""How many rows each of k models fits best (FedSoft)."""
