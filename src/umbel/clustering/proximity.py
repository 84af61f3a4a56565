"""Signatures in, distances between clients out: (n, n), symmetric, zero on the diagonal, float64.

Angles are in degrees, taken with |cos| since the sign of a singular vector is arbitrary, and clipped before arccos.
No loop runs over pairs of clients: pairs are taken in blocks, each a product of matrices on the device of the
signatures, so that memory beyond the result is bounded however many clients there are. Between a set of clients and
itself, one triangle of blocks is computed and mirrored.
"""

import math
from collections.abc import Callable, Iterator
from functools import reduce
from itertools import combinations
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import normalize

from umbel.tree import Ragged

RIGHT = 90.0
STRAIGHT = 180.0  # FLAG's distance of a class that only one of two clients holds
ROUNDING = 1e-4  # degrees: signatures travel as float32, so what is nearer than this is equal
EQUAL = 1e-6  # the same for weights and updates, as a share of their length
RANK_TOLERANCE = 1e-6  # vectors that others span, up to float32's rounding, add no direction
ROOM = {"cpu": 2**19, "cuda": 2**25}  # numbers that one block of products may hold; 4 MB stay near a core
ROTATED = 8  # angles: up to here rotations of all pairs at once beat one small SVD after another

Pairwise: TypeAlias = Callable[[Tensor, Tensor], Tensor]  # some rows of a, some rows of b -> their distances, (r, c)


def degrees(cosine: Tensor) -> Tensor:
    """arccos |cos| in [0, 90]."""
    return _angle(cosine.abs())


def _angle(cosine: Tensor) -> Tensor:
    """arccos in degrees; 0 below ROUNDING, so that a cut by gaps sees none between angles of 1e-7 and 1e-6."""
    angle = torch.rad2deg(torch.arccos(cosine.clamp(-1, 1)))
    return torch.where(angle < ROUNDING, 0.0, angle)


def symmetric(distance: Tensor) -> Tensor:
    """Rounding taken out, in place: the mean of both triangles, and an exact zero for a client and itself."""
    for rows in _strips(len(distance), 2 * len(distance), distance.device):
        even = (distance[rows, rows.start :] + distance[rows.start :, rows].T) / 2
        distance[rows, rows.start :] = even
        distance[rows.start :, rows] = even.T
    return distance.fill_diagonal_(0.0)


def _room(device: torch.device) -> int:
    return ROOM.get(device.type, ROOM["cpu"])


def _strips(n: int, each: int, device: torch.device) -> Iterator[slice]:
    """Slices of n rows with `each` numbers a row, as many at a time as a block may hold."""
    width = max(1, _room(device) // max(1, each))
    return (slice(start, min(n, start + width)) for start in range(0, n, width))


def _by_blocks(a: Tensor, b: Tensor, each: int, pairwise: Pairwise) -> Tensor:
    """`pairwise` of all rows of a and all of b, block by block, (n, m) on the CPU; `each` = numbers a pair takes."""
    distance = torch.empty(len(a), len(b), dtype=torch.float64)
    side = math.isqrt(_room(a.device) // max(1, each)) or 1
    for i in range(0, len(a), side):
        for j in range(i if a is b else 0, len(b), side):
            part = pairwise(a[i : i + side], b[j : j + side]).cpu()
            distance[i : i + side, j : j + side] = part
            if a is b and j > i:
                distance[j : j + side, i : i + side] = part.T
    return distance


# Subspaces --------------------------------------------------------------------------------------------------------


def orthonormal(basis: Ragged) -> Tensor:
    """Each client's vectors made orthonormal in float64, zero where a client has fewer than the most."""
    values, length = basis.values, basis.length.to(basis.values.device)
    made = torch.zeros(values.shape, dtype=torch.float64, device=values.device)
    if not made.numel():
        return made
    inside = torch.arange(values.shape[1], device=values.device) < length[:, None]
    for some in _strips(len(values), made[0].numel(), values.device):
        rows = values[some].double() * inside[some, :, None]
        for _ in range(2):  # the second time takes out what rounding leaves of the first
            squares, turn = torch.linalg.eigh(rows @ rows.mT)
            real = squares > (RANK_TOLERANCE**2 * squares[:, -1:]).clamp(min=1e-200)
            rows = (turn * torch.where(real, squares, torch.inf).rsqrt()[:, None]).mT @ rows
        made[some] = rows
    return made


def _products(a: Tensor, b: Tensor) -> Tensor:
    """All products of vectors: a (n, r, F), b (m, s, F) -> (r, s, n, m), so that pairs of clients lie side by side."""
    (n, r, features), (m, s, _) = a.shape, b.shape
    products = a.reshape(-1, features) @ b.reshape(-1, features).T
    return products.view(n, r, m, s).permute(1, 3, 0, 2).contiguous()


def _cosines(a: Tensor, b: Tensor) -> Tensor:
    """Cosines of the principal angles between orthonormal bases in any order, (k, n, m) with k = min(r, s)."""
    products = _products(a, b)
    if min(a.shape[1], b.shape[1]) > ROTATED:
        cosines: Tensor = torch.linalg.svdvals(products.permute(2, 3, 0, 1)).movedim(-1, 0)
        return cosines
    if a.shape[1] > b.shape[1]:
        products = products.transpose(0, 1)
    k = len(products)
    gram = {(p, q): _dot(products[p], products[q]) for p in range(k) for q in range(p, k)}
    return _eigenvalues(gram, k).clamp(min=0).sqrt()  # cos^2 are the eigenvalues of the products' Gram matrix


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """Sum of products along the first axis, without a temporary of their size."""
    total = a[0] * b[0]
    for j in range(1, len(a)):
        total.addcmul_(a[j], b[j])
    return total


def _eigenvalues(entries: dict[tuple[int, int], Tensor], k: int) -> Tensor:
    """Eigenvalues of many symmetric k x k matrices at once, given as their upper triangles: Jacobi's rotations."""
    at = dict(entries)
    pairs = list(combinations(range(k), 2))
    for _ in range(12):  # quadratic: four or five sweeps are enough
        if all(float(at[pair].abs().max()) < 4e-15 for pair in pairs):  # a few last bits of a cosine of one
            break
        for p, q in pairs:
            off = at[p, q]
            half = (at[q, q] - at[p, p]) / 2
            turn = off / (half.abs() + (half * half + off * off).sqrt()).clamp(min=1e-300)  # tan, but for its sign
            turn = torch.where(half < 0, -turn, turn)
            cos = torch.rsqrt(1 + turn * turn)
            sin = turn * cos
            at[p, p], at[q, q], at[p, q] = at[p, p] - turn * off, at[q, q] + turn * off, off.new_zeros(())
            for other in set(range(k)) - {p, q}:
                x, y = (min(p, other), max(p, other)), (min(q, other), max(q, other))
                at[x], at[y] = cos * at[x] - sin * at[y], sin * at[x] + cos * at[y]
    return torch.stack([at[p, p] for p in range(k)])


def _angles(a: Ragged, b: Ragged, make: Callable[[Ragged], Tensor], pairwise: Pairwise) -> Tensor:
    """`pairwise` of what `make` makes of both sides, by blocks; all at 90 degrees where nobody has a vector."""
    left = make(a)
    right = left if b.values is a.values else make(b)  # the same clients: once, and one triangle is enough
    each = left.shape[1] * right.shape[1]
    if not each:
        return torch.full((len(left), len(right)), RIGHT, dtype=torch.float64)
    return _by_blocks(left, right, each, pairwise)


def _shorter(a: Tensor, b: Tensor) -> Tensor:
    """How many vectors the poorer of two clients has, (n, m)."""
    left, right = ((side.abs().amax(2) > 0).sum(1) for side in (a, b))
    return torch.minimum(left[:, None], right[None])


def smallest_angle(a: Ragged, b: Ragged) -> Tensor:
    """The smallest principal angle (PACFL Eq. 2, FLAG Eq. 1); 90 where a client has no vectors."""
    return _angles(a, b, orthonormal, lambda left, right: degrees(_cosines(left, right).amax(0)))


def summed_angle(a: Ragged, b: Ragged) -> Tensor:
    """The sum of all principal angles; 90 where a client has no vectors."""
    return _angles(a, b, orthonormal, lambda left, right: _total(left, right)[0])


def mean_angle(a: Ragged, b: Ragged) -> Tensor:
    """The mean of all principal angles: tells subspaces apart that share one direction."""

    def pairwise(left: Tensor, right: Tensor) -> Tensor:
        total, real = _total(left, right)
        return total / real.clamp(min=1)

    return _angles(a, b, orthonormal, pairwise)


def _total(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The sum of the principal angles, and how many there are."""
    cosines, real = _cosines(a, b), _shorter(a, b)
    total = degrees(cosines).sum(0) - RIGHT * (len(cosines) - real)  # a vector that is not there has cosine 0
    return torch.where(real > 0, total.clamp(min=0), RIGHT), real


def _units(basis: Ragged) -> Tensor:
    return normalize(basis.values.double(), dim=2)


def column_angle(a: Ragged, b: Ragged) -> Tensor:
    """The smallest angle between any two of the vectors as sent (PACFL's code, with |cos|)."""
    return _angles(a, b, _units, lambda left, right: degrees(_products(left, right).abs().amax((0, 1))))


def paired_angle(a: Ragged, b: Ragged) -> Tensor:
    """The sum of the angles between vectors of the same rank (PACFL Eq. 3 as printed, with |cos|)."""

    def pairwise(left: Tensor, right: Tensor) -> Tensor:
        real = _shorter(left, right)
        total = torch.zeros(real.shape, dtype=torch.float64, device=left.device)
        for k in range(min(left.shape[1], right.shape[1])):
            total += degrees(left[:, k] @ right[:, k].T) * (k < real)
        return torch.where(real > 0, total, RIGHT)

    return _angles(a, b, _units, pairwise)


ANGLES: dict[str, Callable[[Ragged, Ragged], Tensor]] = {
    "smallest": smallest_angle, "mean": mean_angle, "sum": summed_angle, "column": column_angle,
    "paired": paired_angle,
}


# Classes ----------------------------------------------------------------------------------------------------------


class Classwise(NamedTuple):
    """Clients' vectors class by class, as FLAG's clients send them."""

    basis: Ragged  # values (n, r_max, F)
    label: Tensor  # (n, r_max) the class of each vector, padded beyond the length
    counts: Tensor | None  # (n, C) rows of each class; None in the private mode, where all weights are 1
    classes: int  # |C|

    def mine(self, c: int) -> Tensor:
        """(n, r_max), which vectors are of class c."""
        real = torch.arange(self.basis.values.shape[1]) < self.basis.length[:, None]
        return (self.label == c) & real

    def of(self, c: int) -> tuple[Tensor, Ragged]:
        """Who holds class c, and the vectors of those."""
        mine = self.mine(c)
        who = mine.any(1).nonzero().flatten()
        rows = [self.basis.values[i, mine[i]] for i in who.tolist()] or [self.basis.values[:0].flatten(0, 1)]
        return who, Ragged(torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)[: len(who)], mine[who].sum(1))


def surprise(a: Tensor, b: Tensor, kind: int) -> Tensor:
    """(n, m) how surely the absence of a kind at one of two clients is no chance, from counts (n, C) and (m, C).

    Were the two alike, who lacks it would have half the other's share of it: 1 less the chance that none of its rows
    is of that kind. 0 where both have it, or neither.
    """
    counts = a.double(), b.double()
    share = [side[:, kind] / side.sum(1).clamp(min=1) for side in counts]
    size = [side.sum(1) for side in counts]
    left = torch.where((a[:, kind] == 0)[:, None] & (b[:, kind] > 0), 1 - (1 - share[1] / 2) ** size[0][:, None], 0.0)
    right = torch.where((a[:, kind] > 0)[:, None] & (b[:, kind] == 0), 1 - (1 - share[0][:, None] / 2) ** size[1], 0.0)
    return left + right


def union_angle(a: Classwise, b: Classwise) -> Tensor:
    """The mean, over the classes that at least one of two clients has, of the smallest angle between its vectors.

    A class that one of them lacks counts as 90 degrees, weighed by how surprising its absence is: a small client lacks
    classes by chance.
    """
    n, m, same = len(a.label), len(b.label), a.basis.values is b.basis.values
    assert a.counts is not None
    assert b.counts is not None
    total, weight = (torch.zeros(n, m, dtype=torch.float64) for _ in range(2))
    for c in range(a.classes):
        left, mine = a.of(c)
        right, theirs = (left, mine) if same else b.of(c)
        if len(left) and len(right):
            total[left[:, None], right] += smallest_angle(mine, theirs)
            weight[left[:, None], right] += 1
        lack = surprise(a.counts, b.counts, c)
        total += RIGHT * lack
        weight += lack
    return torch.where(weight > 0, total / weight.clamp(min=1e-12), RIGHT)


WEIGHTS = {"shifted": math.e, "literal": 1e-6, "uniform": 0.0}  # epsilon of Eq. 4; uniform has no weights


def class_angle(a: Classwise, b: Classwise, angle: str, weights: str, delta: float,
                bounds: tuple[float, float]) -> Tensor:
    """V_ij = 1/|C| sum_c V'_ijc W'_ijc: Phi where both hold the class, 180 where one does, 0 where none (FLAG Eq. 3-6).

    `bounds` are w_min and w_max of Eq. 5, frozen for newcomers.
    """
    n, m, same = len(a.label), len(b.label), a.basis.values is b.basis.values
    total = torch.zeros(n, m, dtype=torch.float64)
    for c in range(a.classes):
        left, mine = a.of(c)
        right, theirs = (left, mine) if same else b.of(c)
        angles = ANGLES[angle](mine, theirs)
        one, other = torch.zeros(n).bool().index_fill(0, left, True), torch.zeros(m).bool().index_fill(0, right, True)
        for rows in _strips(n, 4 * m, total.device):
            part = STRAIGHT * (one[rows, None] | other).double()
            here = (left >= rows.start) & (left < rows.stop)
            part[(left[here] - rows.start)[:, None], right] = angles[here]
            total[rows] += part * _weight(_ratio(a, b, c, weights, rows), delta, bounds)
    return total / a.classes


def _ratio(a: Classwise, b: Classwise, c: int, weights: str, rows: slice) -> Tensor:
    """W_ijc = max(ln(n_ic + eps), ln(n_jc + eps)) / min(...) for some rows i (Eq. 4)."""
    if a.counts is None or b.counts is None or weights == "uniform":
        return torch.ones(rows.stop - rows.start, len(b.label), dtype=torch.float64)
    left, right = (torch.log(side.counts[:, c].double() + WEIGHTS[weights]) for side in (a, b))  # type: ignore[index]
    left = left[rows]
    return torch.maximum(left[:, None], right[None]) / torch.minimum(left[:, None], right[None])


def _weight(ratio: Tensor, delta: float, bounds: tuple[float, float]) -> Tensor:
    """W' in [1 - delta, 1 + delta] (Eq. 5); 1 where all ratios are equal."""
    low, high = bounds
    if high == low or not delta:
        return torch.ones_like(ratio)
    return 1 - delta + ((ratio - low) / (high - low)).clamp(0, 1) * 2 * delta


def ratio_range(signatures: Classwise, weights: str) -> tuple[float, float]:
    """w_min and w_max over pairs i < j and the classes that at least one of the two holds."""
    n, low, high = len(signatures.label), math.inf, -math.inf
    for c in range(signatures.classes):
        holds = signatures.mine(c).any(1)
        for rows in _strips(n, 4 * n, holds.device):
            later = torch.arange(n) > torch.arange(rows.start, rows.stop)[:, None]
            counted = _ratio(signatures, signatures, c, weights, rows)[later & (holds[rows, None] | holds)]
            if len(counted):
                low, high = min(low, float(counted.min())), max(high, float(counted.max()))
    return (low, high) if low <= high else (1.0, 1.0)


# Updates, weights, trajectories -----------------------------------------------------------------------------------


def _by_features(a: Tensor, b: Tensor, terms: Callable[[Tensor, Tensor], tuple[Tensor, ...]],
                 finish: Callable[..., Tensor]) -> Tensor:
    """`finish` of the sums over features of `terms` in float64, by blocks of clients and of features.

    Vectors may be millions of numbers long: no more of them is made float64 at a time than a block may hold.
    """
    room = _room(a.device)
    width = max(1, room // min(max(len(a), len(b), 1), math.isqrt(room)))

    def pairwise(left: Tensor, right: Tensor) -> Tensor:
        starts = range(0, max(1, left.shape[1]), width)
        parts = (terms(left[:, f : f + width].double(), right[:, f : f + width].double()) for f in starts)
        return finish(*reduce(lambda sums, new: tuple(x + y for x, y in zip(sums, new, strict=True)), parts))

    return _by_blocks(a, b, 1, pairwise)


def _dots(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """ab, |a|^2, |b|^2."""
    return a @ b.T, a.square().sum(1)[:, None], b.square().sum(1)[None]


def update_angle(a: Tensor, b: Tensor) -> Tensor:
    """Angle between updates, (n, d) and (m, d) -> (n, m), in [0, 180] (FLAG Eq. 2)."""
    apart = cosine(a, b)
    for rows in _strips(len(apart), 4 * apart.shape[1], apart.device):
        apart[rows] = _angle(1 - apart[rows])
    return apart


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """1 - cos; a zero vector is at distance 1 from all."""

    def finish(dot: Tensor, mine: Tensor, theirs: Tensor) -> Tensor:
        apart = 1 - dot / (mine.sqrt().clamp(min=1e-12) * theirs.sqrt().clamp(min=1e-12))
        return torch.where(apart < EQUAL**2, 0.0, apart)

    return _by_features(a, b, _dots, finish)


def euclidean(a: Tensor, b: Tensor) -> Tensor:
    """L2, as |a|^2 + |b|^2 - 2 ab about the middle of a block, which is exact to 1e-8 of the longest vector."""

    def terms(left: Tensor, right: Tensor) -> tuple[Tensor, ...]:
        middle = left.mean(0)
        return *_dots(left - middle, right - middle), *_dots(left, right)[1:]

    def finish(dot: Tensor, mine: Tensor, theirs: Tensor, *lengths: Tensor) -> Tensor:
        square = mine + theirs - 2 * dot
        longest = torch.maximum(torch.maximum(mine, lengths[0]), torch.maximum(theirs, lengths[1]))
        return torch.where(square < EQUAL**2 * longest, 0.0, square).sqrt()

    return _by_features(a, b, terms, finish)


def manhattan(a: Tensor, b: Tensor) -> Tensor:
    """L1."""

    def terms(left: Tensor, right: Tensor) -> tuple[Tensor, ...]:
        return torch.cdist(left, right, p=1), left.abs().sum(1)[:, None], right.abs().sum(1)[None]

    def finish(apart: Tensor, mine: Tensor, theirs: Tensor) -> Tensor:
        return torch.where(apart < EQUAL * torch.maximum(mine, theirs), 0.0, apart)

    return _by_features(a, b, terms, finish)


DISTANCES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"l2": euclidean, "l1": manhattan, "cosine": cosine}


def trajectory_distance(a: Tensor, b: Tensor) -> Tensor:
    """Mean over classes of the distance between corresponding points; a (n, 2, C), b (m, 2, C) (CFLGT)."""

    def pairwise(left: Tensor, right: Tensor) -> Tensor:
        apart = left.double()[:, None] - right.double()[None]  # (n, m, 2, C)
        distance: Tensor = apart.norm(dim=2).mean(2)
        return distance

    return _by_blocks(a, b, 2 * a.shape[1] * a.shape[2], pairwise)
