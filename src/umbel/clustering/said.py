"""What can be said of a cut by tests: how much clusters differ, and why there are so many."""

from collections.abc import Mapping

import numpy as np
from scipy.spatial.distance import cdist

from umbel.clustering.exchangeable import LEVEL, TESTS
from umbel.clustering.parts import Ints, Parts


def contrast(parts: Parts, labels: Ints) -> float:
    """How many times farther apart parts of different clusters lie than two parts of one client, kind for kind.

    NaN where clusters have no kind in common.
    """
    ratios = []
    for kind in np.unique(parts.kind):
        mine = parts.kind == kind
        owner, apart = parts.owner[mine], cdist(parts.vector[mine], parts.vector[mine])
        same = owner[:, None] == owner[None]
        across = labels[owner][:, None] != labels[owner][None]
        np.fill_diagonal(same, False)
        if same.any() and across.any() and apart[same].mean() > 0:
            ratios.append(apart[across].mean() / apart[same].mean())
    return float(np.mean(ratios)) if ratios else float("nan")


def words(test: Mapping[str, float], clients: int, clusters: int, trial: str = "") -> str:
    """Why there are so many clusters, in a sentence without its full stop: `test` has the fields of `Verdict`,
    `by_shares` and, where it is a number, `contrast`. `trial` is what a trial said of the clusters that were found.
    """
    p = min(1.0, TESTS * min(test["looks"], test["absent"], test["shares"]))
    if p <= LEVEL:
        if clusters > 1:
            return f"{_differences(test, p)}{'; ' if trial else ''}{trial}"
        return (f"the {clients} clients are not all alike ({p_said(p)}), but"
                f" {trial or 'no two clusters of them can be told apart'}")
    if clients == 1:
        reason = "there is one client"
    elif not test["enough"]:
        reason = f"too few rows to tell {clients} clients apart"
    else:
        reason = f"{clients} clients cannot be told apart ({p_said(p)})"
    return f"{reason}; newcomers that can be told from them founded the others" if clusters > 1 else reason


def _differences(test: Mapping[str, float], p: float) -> str:
    """In what clients of different clusters differ."""
    if test["by_shares"]:
        return f"clients hold their classes in different shares ({p_said(p)}), and look alike otherwise"
    several = []
    if "contrast" in test and TESTS * test["looks"] <= LEVEL:
        several.append(f"differ {test['contrast']:.1f} times as much as two parts of one client")
    if TESTS * test["absent"] <= LEVEL or not several:
        several.append("have other classes")
    return f"clients of different clusters {' and '.join(several)} ({p_said(p)})"


def p_said(p: float) -> str:
    """A p-value as sentences have it."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}" if p < 0.1 else f"p = {p:.2f}"
