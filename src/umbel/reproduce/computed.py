"""Tables that need no run: angles between data sets and classes, synthetic Gaussians, layers of trained models."""

from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from torch import Tensor

from umbel.algorithms import Local
from umbel.clustering.proximity import ANGLES, euclidean
from umbel.clustering.signatures import leading_vectors
from umbel.data.clients import Pool, Population, Work
from umbel.data.shift import colour_32
from umbel.data.sources import Dataset
from umbel.federation.door import Cohort
from umbel.federation.training import train
from umbel.nets.objective import objective_of
from umbel.reproduce.table import TableCell
from umbel.runs.simulate import simulate
from umbel.seeds import generator
from umbel.tree import Ragged

Load = Callable[[str], Dataset]
Compute = Callable[[TableCell, Load, int], dict[str, float]]  # cell, how to load a data set, seed -> value by measure
Points = NDArray[np.float64]  # (n, d)

READ_AS = {"principal": "smallest"}  # what the papers call an angle, and our name of it where that differs


def _between(angle: str, a: Tensor, b: Tensor) -> float:
    """The angle between the spans of two sets of row vectors."""
    one, other = (Ragged(side[None], torch.tensor([len(side)])) for side in (a, b))
    return float(ANGLES[READ_AS.get(angle, angle)](one, other)[0, 0])


# PACFL, Table 1


def angles(cell: TableCell, load: Load, seed: int) -> dict[str, float]:
    """Between the subspaces of two data sets, p = 2, raw pixels padded to 3 x 32 x 32."""
    one, other = (_subspace(name, load) for name in cell.column.split("|"))
    return {"angle": _between(cell.row, one, other)}


@cache
def _subspace(name: str, load: Load) -> Tensor:
    """The leading vectors of a whole training set. Padding keeps lengths, so the SVD is of the unpadded images."""
    images = load(name).x_train
    vectors = leading_vectors(torch.from_numpy(images).flatten(1).float() / 255, 2)
    padded = colour_32(vectors.numpy().reshape(-1, *images.shape[1:]))
    return torch.nn.functional.normalize(torch.from_numpy(padded).flatten(1), dim=1)


# PACFL, Fig. 3

ANIMALS, VEHICLES = (2, 3, 4, 5, 6, 7), (0, 1, 8, 9)  # classes of CIFAR-10


def class_angles(cell: TableCell, load: Load, seed: int) -> dict[str, float]:
    """Mean column angle between the classes of CIFAR-10, p = 3: among animals, among vehicles, across."""
    basis = _class_bases(load)
    first, second = {"animals": (ANIMALS, ANIMALS), "vehicles": (VEHICLES, VEHICLES)}.get(cell.row, (ANIMALS, VEHICLES))
    angles = [_between("column", basis[a], basis[b]) for a in first for b in second if a != b]
    return {"angle": sum(angles) / len(angles)}


@cache
def _class_bases(load: Load) -> list[Tensor]:
    data = load("cifar10")
    rows = (torch.from_numpy(data.x_train[data.y_train == c]) for c in range(data.classes))
    return [leading_vectors(x.flatten(1).float() / 255, 3) for x in rows]


# PACFL, Table 6

POINTS, DIMENSIONS = 100, 20
AGAINST = {"2mu": (2.0, 1.0), "3mu": (3.0, 1.0), "2S": (1.0, 2.0), "5S": (1.0, 5.0)}  # factors of mean and covariance


def gaussians(cell: TableCell, load: Load, seed: int) -> dict[str, float]:
    """The distance between samples of N(mu, S) and of another Gaussian; or whether it rises from one to the next."""
    if ">" in cell.column:
        after, before = (_distance(cell.row, name, seed) for name in cell.column.split(">"))
        return {"rises": float(after > before)}
    return {"distance": _distance(cell.row, cell.column, seed)}


def _distance(kind: str, other: str, seed: int) -> float:
    first, second = (_sample(name, seed) for name in ("mu", other))
    return SAMPLE_DISTANCES[kind](first, second)


def _sample(name: str, seed: int) -> Points:
    """mu = 1 in every dimension, S = I. The factors share their draws: only mean and scale differ."""
    shift, scale = AGAINST.get(name, (1.0, 1.0))
    draws = generator(seed, "gaussians", name == "mu").standard_normal((POINTS, DIMENSIONS))
    return np.asarray(shift + np.sqrt(scale) * draws)


def _moments(points: Points) -> tuple[Points, Points]:
    return points.mean(0), np.cov(points, rowvar=False)


def bhattacharyya(a: Points, b: Points) -> float:
    """1/8 m' S^-1 m + 1/2 ln(|S| / sqrt(|S1| |S2|)) of the fitted Gaussians, S = (S1 + S2) / 2."""
    (mu, one), (nu, two) = _moments(a), _moments(b)
    middle = (one + two) / 2
    logs = [float(np.linalg.slogdet(each)[1]) for each in (middle, one, two)]
    return float((mu - nu) @ np.linalg.solve(middle, mu - nu)) / 8 + (logs[0] - (logs[1] + logs[2]) / 2) / 2


def kullback_leibler(a: Points, b: Points) -> float:
    """Of the first fitted Gaussian from the second."""
    (mu, one), (nu, two) = _moments(a), _moments(b)
    logs = [float(np.linalg.slogdet(each)[1]) for each in (one, two)]
    spread = float(np.trace(np.linalg.solve(two, one)))
    apart = float((nu - mu) @ np.linalg.solve(two, nu - mu))
    return (spread + apart - len(mu) + logs[1] - logs[0]) / 2


def mean_discrepancy(a: Points, b: Points) -> float:
    """MMD with a Gaussian kernel whose width is the median distance."""
    both = np.concatenate([a, b])
    apart = cdist(both, both)
    kernel = np.exp(-((apart / np.median(apart[apart > 0])) ** 2) / 2)
    n = len(a)
    return float(np.sqrt(max(0.0, kernel[:n, :n].mean() + kernel[n:, n:].mean() - 2 * kernel[:n, n:].mean())))


def _angle(kind: str) -> Callable[[Points, Points], float]:
    def of(a: Points, b: Points) -> float:
        one, other = (leading_vectors(torch.from_numpy(side), 3) for side in (a, b))
        return _between(kind, one, other)
    return of


SAMPLE_DISTANCES: dict[str, Callable[[Points, Points], float]] = {
    "bhattacharyya": bhattacharyya, "kl": kullback_leibler, "mmd": mean_discrepancy,
    "smallest": _angle("smallest"), "paired": _angle("paired"),
}


# FedClust, Fig. 1


def layers(cell: TableCell, load: Load, seed: int) -> dict[str, float]:
    """Mean distance between two groups of clients over that within them, by the weights of one layer."""
    weights, groups = _trained(load, seed)
    apart = euclidean(weights[cell.row], weights[cell.row])
    across = groups[:, None] != groups[None]
    within = ~across & ~torch.eye(len(groups), dtype=torch.bool)
    return {"contrast": float(apart[across].mean() / apart[within].mean())}


@cache
def _trained(load: Load, seed: int) -> tuple[dict[str, Tensor], Tensor]:
    """LeNet-5 at ten clients after 10 epochs from one model: five hold labels 0 to 4, five labels 5 to 9."""
    data, rng = load("cifar10"), generator(seed, "layers")
    groups = np.repeat([0, 1], 5)
    rows = [rng.choice(np.flatnonzero((data.y_train >= 5) == group), 750, replace=False) for group in groups]
    people = Population(Pool(data.x_train, data.y_train), rows, rows, groups, objective_of(data.classes))
    fed, local = simulate(people, model="lenet5", seed=seed), Local()
    heard = fed.map(train, Cohort(torch.arange(len(rows)), 0), work=Work(epochs=10, batch=local.batch),
                    shared={"model": fed.net.init(seed)}, keep=False, **local.at(0))
    names = [name for name in heard.answers["model"] if name.endswith(".weight")]
    return ({name.removesuffix(".weight"): heard.answers["model"][name].flatten(1) for name in names},
            torch.from_numpy(groups))


COMPUTED: dict[str, Compute] = {
    "angles": angles, "class_angles": class_angles, "gaussians": gaussians, "layers": layers,
}
