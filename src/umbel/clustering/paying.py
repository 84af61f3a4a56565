"""Do clusters pay? A paired test of one model against clusters, by the loss of rows that neither was trained on.

That clients differ (`exchangeable.py`) does not say that they should be parted: a model of their own has fewer rows to
learn from. Here both have been trained on the same batches from the same start, and each client's loss under one is
taken from its loss under the other. Three answers: clusters pay, one model is better, cannot be told.
"""

from math import floor, log10
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from umbel.clustering.cuts import plural

Floats = NDArray[np.float64]

LEVEL = 0.05  # of the two-sided test: each side errs half as often
FEW = 8  # clients below which rows are compared: a handful of sites are all there are, and no sample of more


class Paid(NamedTuple):
    """One model against clusters. All are numbers, so that it can be kept as a tensor: `Paid(*numbers.tolist())`."""

    gain: float  # how much lower the validation loss is with clusters; a mean over clients, which count alike
    error: float  # its standard error; NaN where there were too few to know it
    p: float  # two-sided; 1 where there was nothing to compare
    clusters: float  # that were compared with one model
    clients: float  # with validation rows
    rows: float  # of theirs

    @property
    def better(self) -> bool:
        """Clusters pay."""
        return self.p <= LEVEL and self.gain > 0

    @property
    def worse(self) -> bool:
        """One model is better."""
        return self.p <= LEVEL and self.gain < 0

    @property
    def over_clients(self) -> bool:
        """Whether the test is over clients, and not over their rows."""
        return self.clients >= FEW


def paid(clusters: int, gain: Floats, squares: Floats, size: Floats) -> Paid:
    """A paired t test over clients, of which each tells three numbers, (n,): its rows and, summed over them, how much
    lower their loss is with clusters, and the squares of that.

    Of fewer than `FEW` clients every one counts as it is: the test is over rows, which err inside their client alone
    (one variance for all; n_i rows of client i add 1/n_i of it to the mean).
    """
    there = size > 0
    gain, squares, size = gain[there], squares[there], size[there]
    n, rows = len(size), float(size.sum())
    if not n:
        return Paid(0.0, float("nan"), 1.0, clusters, 0, 0.0)
    means = gain / size
    if n >= FEW:
        free = float(n - 1)
        error = float(means.std(ddof=1)) / n**0.5
    else:
        free = rows - n
        inside = float((squares - size * means**2).clip(min=0).sum())
        error = (inside / free * float((1 / size).sum())) ** 0.5 / n if free else float("nan")
    return Paid(float(means.mean()), error, _p(float(means.mean()), error, free), clusters, n, rows)


def _p(mean: float, error: float, free: float) -> float:
    """Two-sided, by Student's t; without any spread a difference is one, and no difference is none."""
    if mean == 0 or np.isnan(error):
        return 1.0
    return float(2 * stats.t.sf(abs(mean) / error, free)) if error else 0.0


def words(found: Paid) -> str:
    """A sentence without its full stop, as in: 4 clusters lower validation loss by 0.41 ± 0.05 against one model."""
    clusters = plural(int(found.clusters))
    if np.isnan(found.error):
        return f"too few validation rows ({found.rows:g}) to tell whether {clusters} serve better than one model"
    p = "p < 0.001" if found.p < 0.001 else f"p = {found.p:.2g}"
    over = f"{found.clients:g} clients" if found.over_clients else f"{found.rows:g} rows"
    if not (found.better or found.worse):
        return f"one model and {clusters} cannot be told apart by validation loss ({p}, paired over {over})"
    digits = max(0, -floor(log10(found.error))) if found.error else 2  # of the error, the first one that is not 0
    amount = f"{abs(found.gain):.{digits}f} ± {found.error:.{digits}f}"
    return (f"{clusters} {'lower' if found.better else 'raise'} validation loss by {amount} against one model ({p},"
            f" paired over {over})")
