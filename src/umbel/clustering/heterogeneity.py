"""Whether signatures fall into groups at all."""

import numpy as np
import torch
from torch import Tensor

from umbel.seeds import generator


def hopkins(points: Tensor, seed: int = 0, draws: int = 20) -> float:
    """The Hopkins statistic of points (n, d): 0.5 for uniform ones, towards 1 for clustered ones.

    H = sum u / (sum u + sum w): u are distances from uniform points of the bounding box to the nearest client, w from
    clients to the nearest other one; the mean of `draws` draws of max(5, n / 10) points each.
    """
    x = points.double().numpy()
    n = len(x)
    if n < 3 or not np.ptp(x, axis=0).any():
        return 0.5  # too few or equal points: nothing speaks for groups
    m = min(n, max(5, n // 10))
    rng = generator(seed, "hopkins")
    nearest = torch.cdist(points.double(), points.double()).fill_diagonal_(torch.inf).amin(1).numpy()
    values = []
    for _ in range(draws):
        uniform = torch.from_numpy(rng.uniform(x.min(0), x.max(0), (m, x.shape[1])))
        u = float(torch.cdist(uniform, points.double()).amin(1).sum())
        w = float(nearest[rng.choice(n, m, replace=False)].sum())
        values.append(u / (u + w))
    return float(np.mean(values))


def variation(trajectories: Tensor) -> Tensor:
    """c_v = sigma / mu of all pulling and of all pushing forces, (2,)."""
    forces = trajectories.double().transpose(0, 1).flatten(1)
    return forces.std(1, correction=0) / forces.mean(1).clamp(min=1e-12)
