"""Signatures in, distances between clients out: (n, n), symmetric, zero on the diagonal, float64.

Angles are in degrees, taken with |cos| since the sign of a singular vector is arbitrary, and clipped before arccos.
No loop runs over pairs of clients.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from umbel.tree import Ragged

RIGHT = 90.0
STRAIGHT = 180.0  # FLAG's distance of a class that only one of two clients holds
ROUNDING = 1e-4  # degrees: signatures travel as float32, so what is nearer than this is equal
EQUAL = 1e-6  # the same for weights and updates, as a share of their length
RANK_TOLERANCE = 1e-6  # vectors that others span, up to float32's rounding, add no direction


def degrees(cosine: Tensor) -> Tensor:
    """arccos |cos| in [0, 90]."""
    return _angle(cosine.abs())


def _angle(cosine: Tensor) -> Tensor:
    """arccos in degrees. Rounding alone gives no angle: a gap between 1e-7 and 1e-6 degrees is no gap."""
    angle = torch.rad2deg(torch.arccos(cosine.clamp(-1, 1)))
    return torch.where(angle < ROUNDING, 0.0, angle)


def symmetric(distance: Tensor) -> Tensor:
    """Rounding taken out: the mean of both triangles, and an exact zero for a client and itself."""
    even = (distance + distance.T) / 2
    return even.fill_diagonal_(0.0)


def _between(a: Tensor, b: Tensor) -> Tensor:
    """All products of vectors: a (n, r, F), b (m, s, F) -> (n, m, r, s)."""
    n, r, features = a.shape
    m, s, _ = b.shape
    return (a.reshape(n * r, features) @ b.reshape(m * s, features).T).view(n, r, m, s).transpose(1, 2)


def orthonormal(basis: Ragged) -> Tensor:
    """Each client's vectors made orthonormal in float64, zero where a client has fewer than the most."""
    made = torch.zeros(basis.values.shape, dtype=torch.float64)
    for i, length in enumerate(basis.length.tolist()):
        if length:
            _, size, rows = torch.linalg.svd(basis.values[i, :length].double().cpu(), full_matrices=False)
            real = size > RANK_TOLERANCE * size[0]
            made[i, : int(real.sum())] = rows[real]
    return made


def _cosines(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines of the principal angles, (n, m, k) descending, and how many of them are real, (n, m)."""
    sizes = [(side.norm(dim=2) > 0).sum(1) for side in (a, b)]
    return torch.linalg.svdvals(_between(a, b)), torch.minimum(sizes[0][:, None], sizes[1][None])


def smallest_angle(a: Ragged, b: Ragged) -> Tensor:
    """The smallest principal angle (PACFL Eq. 2, FLAG Eq. 1); 90 where a client has no vectors."""
    cosines, _ = _cosines(orthonormal(a), orthonormal(b))
    return degrees(cosines[..., 0]) if cosines.shape[-1] else torch.full(cosines.shape[:2], RIGHT, dtype=torch.float64)


def summed_angle(a: Ragged, b: Ragged) -> Tensor:
    """The sum of all principal angles; 90 where a client has no vectors."""
    return _total(a, b)[0]


def mean_angle(a: Ragged, b: Ragged) -> Tensor:
    """The mean of all principal angles: tells subspaces apart that share one direction."""
    total, real = _total(a, b)
    return total / real.clamp(min=1)


def _total(a: Ragged, b: Ragged) -> tuple[Tensor, Tensor]:
    """The sum of the principal angles, and how many there are."""
    cosines, real = _cosines(orthonormal(a), orthonormal(b))
    counted = torch.arange(cosines.shape[-1]) < real[..., None]
    return torch.where(real > 0, (degrees(cosines) * counted).sum(-1), RIGHT), real


def column_angle(a: Ragged, b: Ragged) -> Tensor:
    """The smallest angle between any two of the vectors as sent (PACFL's code, with |cos|)."""
    products = _between(*(torch.nn.functional.normalize(side.values.double().cpu(), dim=2) for side in (a, b)))
    if not products.numel():
        return torch.full(products.shape[:2], RIGHT, dtype=torch.float64)
    return degrees(products.abs().flatten(2).amax(2))


def paired_angle(a: Ragged, b: Ragged) -> Tensor:
    """The sum of the angles between vectors of the same rank (PACFL Eq. 3 as printed, with |cos|)."""
    products = _between(*(torch.nn.functional.normalize(side.values.double().cpu(), dim=2) for side in (a, b)))
    real = torch.minimum(a.length[:, None], b.length[None])
    same = degrees(products.diagonal(dim1=2, dim2=3))
    counted = torch.arange(same.shape[-1]) < real[..., None]
    return torch.where(real > 0, (same * counted).sum(-1), RIGHT)


ANGLES: dict[str, Callable[[Ragged, Ragged], Tensor]] = {
    "smallest": smallest_angle, "mean": mean_angle, "sum": summed_angle, "column": column_angle,
    "paired": paired_angle,
}


class Classwise(NamedTuple):
    """Clients' vectors class by class, as FLAG's clients send them."""

    basis: Ragged  # values (n, r_max, F)
    label: Tensor  # (n, r_max) the class of each vector, padded beyond the length
    counts: Tensor | None  # (n, C) rows of each class; None in the private mode, where all weights are 1
    classes: int  # |C|

    def of(self, c: int) -> Ragged:
        """Each client's vectors of one class."""
        real = torch.arange(self.basis.values.shape[1]) < self.basis.length[:, None]
        mine = (self.label == c) & real
        rows = [values[keep] for values, keep in zip(self.basis.values, mine, strict=True)]
        return Ragged(torch.nn.utils.rnn.pad_sequence(rows, batch_first=True), mine.sum(1))


WEIGHTS = {"shifted": math.e, "literal": 1e-6, "uniform": 0.0}  # epsilon of Eq. 4; uniform has no weights


def class_angle(a: Classwise, b: Classwise, angle: str, weights: str, delta: float,
                bounds: tuple[float, float]) -> Tensor:
    """V_ij = 1/|C| sum_c V'_ijc W'_ijc: Phi where both hold the class, 180 where one does, 0 where none (FLAG Eq. 3-6).

    `bounds` are w_min and w_max of Eq. 5, frozen for newcomers.
    """
    total = torch.zeros(len(a.label), len(b.label), dtype=torch.float64)
    for c in range(a.classes):
        mine, theirs = a.of(c), b.of(c)
        left, right = (mine.length > 0)[:, None], (theirs.length > 0)[None]
        part = torch.where(left & right, ANGLES[angle](mine, theirs), STRAIGHT * (left | right))
        total += part * _weight(_ratio(a, b, c, weights), delta, bounds)
    return total / a.classes


def _ratio(a: Classwise, b: Classwise, c: int, weights: str) -> Tensor:
    """W_ijc = max(ln(n_ic + eps), ln(n_jc + eps)) / min(...) (Eq. 4)."""
    if a.counts is None or b.counts is None or weights == "uniform":
        return torch.ones(len(a.label), len(b.label), dtype=torch.float64)
    left, right = (torch.log(side.counts[:, c].double() + WEIGHTS[weights]) for side in (a, b))  # type: ignore[index]
    return torch.maximum(left[:, None], right[None]) / torch.minimum(left[:, None], right[None])


def _weight(ratio: Tensor, delta: float, bounds: tuple[float, float]) -> Tensor:
    """W' in [1 - delta, 1 + delta] (Eq. 5); 1 where all ratios are equal."""
    low, high = bounds
    if high == low or not delta:
        return torch.ones_like(ratio)
    return 1 - delta + ((ratio - low) / (high - low)).clamp(0, 1) * 2 * delta


def ratio_range(signatures: Classwise, weights: str) -> tuple[float, float]:
    """w_min and w_max over pairs i < j and the classes that at least one of the two holds."""
    pairs = torch.ones(len(signatures.label), len(signatures.label)).triu(1).bool()
    found = []
    for c in range(signatures.classes):
        holds = signatures.of(c).length > 0
        found.append(_ratio(signatures, signatures, c, weights)[pairs & (holds[:, None] | holds[None])])
    ratios = torch.cat(found)
    return (float(ratios.min()), float(ratios.max())) if len(ratios) else (1.0, 1.0)


def update_angle(a: Tensor, b: Tensor) -> Tensor:
    """Angle between updates, (n, d) and (m, d) -> (n, m), in [0, 180] (FLAG Eq. 2)."""
    return _angle(1 - cosine(a, b))


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """1 - cos; a zero vector is at distance 1 from all."""
    left, right = (torch.nn.functional.normalize(side.double(), dim=1) for side in (a, b))
    apart = (1 - left @ right.T).cpu()
    return torch.where(apart < EQUAL**2, 0.0, apart)


def euclidean(a: Tensor, b: Tensor) -> Tensor:
    """L2."""
    return _minkowski(a.double(), b.double(), 2)


def manhattan(a: Tensor, b: Tensor) -> Tensor:
    """L1."""
    return _minkowski(a.double(), b.double(), 1)


def _minkowski(a: Tensor, b: Tensor, p: int) -> Tensor:
    apart = torch.cdist(a, b, p=p, compute_mode="donot_use_mm_for_euclid_dist")
    length = torch.maximum(a.norm(p, dim=1)[:, None], b.norm(p, dim=1)[None])
    return torch.where(apart < EQUAL * length, 0.0, apart).cpu()


DISTANCES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"l2": euclidean, "l1": manhattan, "cosine": cosine}


def trajectory_distance(a: Tensor, b: Tensor) -> Tensor:
    """Mean over classes of the distance between corresponding points; a (n, 2, C), b (m, 2, C) (CFLGT)."""
    apart = a.double()[:, None] - b.double()[None]  # (n, m, 2, C)
    distance: Tensor = apart.norm(dim=2).mean(2).cpu()
    return distance
