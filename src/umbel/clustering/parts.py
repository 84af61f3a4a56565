"""What clients say of their rows so that a test can tell whether they differ: parts of equal size, kind by kind.

A part is the mean of m rows of one kind (a class; a bin of a number; all rows where there are no kinds), *the same m at
all clients*, as at most 16 numbers: its rows pass a fixed random projection that keeps at most half of their numbers.
Where clients hold rows of one distribution, parts of one client are no more alike than parts of different clients,
whatever the clients' sizes and however their kinds are mixed: `exchangeable.py` makes a test of that.

Copies of a row count once. Rows that follow in time are dealt as blocks with gaps: `deal="blocks"`.
"""

from collections.abc import Iterator
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from umbel.clustering.signatures import counts_of, features_of, kinds_of, width, width_embedded
from umbel.federation.tasks import ROWS, Client, Leaf, Of, Plain, Reply, Rows, UpTo, register
from umbel.nets.model import Model
from umbel.nets.objective import Regress
from umbel.seeds import generator
from umbel.tree import Params, Tree

WIDTH = 16  # numbers of a part, at most
MOST_PARTS = 8  # of one kind at one client
PARTS = 4  # that a client with few rows of a kind should have
LEAST_ROWS, MOST_ROWS = 2, 20  # of a part
SMALL = 0.2  # the quantile of clients' rows by which parts are sized: a fifth of the clients may have fewer parts
FINE = 2**16  # rows are compared to this fraction of a unit, which no device's rounding reaches
DEALS = ("random", "blocks")

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Parts(NamedTuple):
    """The parts of some clients, by their places among those who were asked."""

    owner: Ints  # (u,)
    kind: Ints  # (u,)
    vector: Floats  # (u, d)
    counts: Ints  # (n, k) distinct rows of each kind

    def of(self, members: Ints) -> "Parts":
        """The parts of some clients, who are numbered anew in this order."""
        place = np.full(len(self.counts), -1)
        place[members] = np.arange(len(members))
        mine = place[self.owner] >= 0
        return Parts(place[self.owner[mine]], self.kind[mine], self.vector[mine], self.counts[members])


def sizes(counts: Tensor, deal: str = "random") -> Tensor:
    """(k,) rows of a part of each kind, the same at all clients, from how many rows of it clients have (n, k)."""
    rows = []
    for column in counts.numpy().T:
        held = column[column > 0]
        few = float(np.quantile(held, SMALL)) if len(held) else 0.0
        if deal == "blocks":  # as long as they can be: what follows in time is alike for a while
            rows.append(max(LEAST_ROWS, int(few // (2 * PARTS))))
        else:
            rows.append(int(np.clip(few // PARTS, LEAST_ROWS, MOST_ROWS)))
    return torch.tensor(rows, dtype=torch.long)


def read(described: Tree) -> Parts:
    """Clients' answers as they are kept, padded: vector (n, q, d), length (n,), kind (n, q), counts (n, k); flat."""
    vector, kind = described["vector"].double().numpy(), described["kind"].numpy()
    here = np.arange(vector.shape[1]) < described["length"].numpy()[:, None]
    owner = np.broadcast_to(np.arange(len(here))[:, None], here.shape)
    return Parts(owner[here].astype(np.int64), kind[here], vector[here], described["counts"].numpy())


def _width(features: int) -> int:
    return min(WIDTH, -(-features // 2))


def projected(rows: Tensor) -> Tensor:
    """Rows (m, F) on fixed random directions, orthonormal: (m, d). Nobody draws them, so all clients have the same."""
    features = rows.shape[1]
    drawn = generator("projection", features).normal(size=(features, _width(features)))
    basis = torch.from_numpy(np.linalg.qr(drawn)[0]) * (features / _width(features)) ** 0.5
    answer: Tensor = rows.double().cpu() @ basis
    return answer


def marks(x: Tensor, y: Tensor) -> Tensor:
    """(rows,) a number that is the same for copies of a row and else as good as random."""
    whole = (x.flatten(1).double() * FINE).round().long().cpu().numpy()
    of = y.reshape(len(y), -1).double().cpu().numpy()
    return torch.tensor([int.from_bytes(blake2b(a.tobytes() + b.tobytes(), digest_size=8).digest(), "little") >> 1
                         for a, b in zip(whole, of, strict=True)], dtype=torch.long)


def _first_of_each(mark: Ints, deal: str) -> Ints:
    """Rows without their copies: in the order of their marks, which is none; or as they lie, in time."""
    first: Ints = np.unique(mark, return_index=True)[1]
    return np.sort(first) if deal == "blocks" else first


def _dealt(rows: Ints, size: int, deal: str) -> Iterator[Ints]:
    """Parts of `size` rows; in time with as many rows left out between them, and as far apart as they can be."""
    starts = np.arange(0, len(rows) - size + 1, 2 * size if deal == "blocks" else size)
    if len(starts) > MOST_PARTS:
        starts = starts[np.linspace(0, len(starts) - 1, MOST_PARTS).round().astype(int)]
    return (rows[start : start + size] for start in starts)


def _goals(net: Model, y: Tensor) -> Tensor:
    """Numbers to be predicted are part of what a row is: other meanings of equal inputs show in them."""
    goal = net.objective
    return (y.reshape(len(y), -1).double().cpu() - goal.centre) / goal.scale if isinstance(goal, Regress) else \
        torch.zeros(len(y), 0, dtype=torch.float64)


def _many(net: Model) -> int:
    return max(1, net.objective.groups)


def _parts(net: Model, vectors: Tensor, kinds: Tensor, mark: Tensor, sizes: tuple[int, ...], deal: str) -> Reply:
    values, kind = vectors.cpu().numpy(), kinds.cpu().numpy()
    if not np.isfinite(values).all():  # the federation refuses such an answer and says why
        return Reply({"part": torch.full((1, values.shape[1]), torch.nan), "part_kind": torch.zeros(1).long()})
    rows = _first_of_each(mark.cpu().numpy(), deal)
    means, of = [np.zeros((0, values.shape[1]))], []
    for k, size in enumerate(sizes):
        for part in _dealt(rows[kind[rows] == k], size, deal):
            means.append(values[part].mean(0, keepdims=True))
            of.append(k)
    made = torch.from_numpy(np.concatenate(means)).float()
    return Reply({"part": made, "part_kind": torch.tensor(of, dtype=torch.long)})


def _columns(net: Model, features: int) -> int:
    goals = int(np.prod(net.objective.target, initial=1)) if isinstance(net.objective, Regress) else 0
    return _width(features) + goals


def _answers(net: Model, features: int) -> Tree:
    most = MOST_PARTS * _many(net)
    return {"part": Leaf((UpTo(most), _columns(net, features))),
            "part_kind": Leaf((UpTo(most),), torch.int64, least=0, most=_many(net) - 1)}


def _raw(net: Model, client: Client, *, sizes: tuple[int, ...], deal: str = "random", signature: str = "raw") -> Reply:
    rows = counts_of(net, client.x) if signature == "counts" else ((client.x - net.mean) / net.std).flatten(1)
    vectors = torch.cat([projected(rows), _goals(net, client.y)], 1)
    return _parts(net, vectors, kinds_of(net, client.y), marks(client.x, client.y), sizes, deal)


def _embedded(net: Model, params: Params, x: Tensor, y: Tensor) -> Tree:
    vectors = torch.cat([projected(features_of(net, params, x)), _goals(net, y)], 1)
    return {"vector": vectors.to(x.device), "kind": kinds_of(net, y), "mark": marks(x, y).to(x.device)}


def _of_embedded(net: Model, values: Tree, *, sizes: tuple[int, ...], deal: str = "random", **_: Any) -> Reply:
    return _parts(net, values["vector"], values["kind"], values["mark"], sizes, deal)


def _distinct(net: Model, client: Client) -> Reply:
    first = _first_of_each(marks(client.x, client.y).numpy(), "random")
    kinds = kinds_of(net, client.y).cpu()[torch.from_numpy(first)]
    return Reply({"counts": torch.bincount(kinds, minlength=_many(net))})


distinct_counts = register(Plain(
    "distinct_counts", _distinct, answers=lambda net: {
        "counts": Leaf((_many(net),), torch.int64, least=0, total=Of(ROWS))}))
"""How many rows of each kind a client holds; copies of a row count once."""

raw_parts = register(Plain(
    "raw_parts", _raw, options=("sizes", "deal", "signature"),
    answers=lambda net, signature="raw", **_: _answers(net, width(net, signature))))
"""Parts of a client's rows, raw or counted."""

embedded_parts = register(Rows(
    "embedded_parts", _embedded, _of_embedded, options=("sizes", "deal", "become"),
    answers=lambda net, **_: _answers(net, width_embedded(net))))
"""The same of rows as the model that was sent embeds them."""
