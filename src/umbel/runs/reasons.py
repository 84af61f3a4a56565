"""Why there are so many clusters, and how sure that is: what result.json keeps of it, and the sentences about it.

The terminal and the page say the same. The sentence of the reason is the method's own (`Algorithm.why`).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from umbel.algorithms.base import State
from umbel.clustering.bootstraps import BOOTSTRAPS, steadiness

DIGITS = 4  # of a share of bootstraps


def steady(state: State, names: Sequence[str]) -> dict[str, Any] | None:
    """How often clients stay together when clusters are formed again from bootstraps over rows; None where that was
    not tried, or could come out in one way alone.

    Of the clients that were there when clusters were formed, and have had the same rows since.
    """
    if "together" not in state.evidence:
        return None
    together = state.evidence["together"].numpy()
    who = state.evidence["who"][: len(together)]
    labels = state.labels[who].numpy()
    here = np.flatnonzero((together.diagonal() > 0) & (labels >= 0))
    who, labels, together = who[here], labels[here], together[np.ix_(here, here)]
    if not 1 < len(set(labels.tolist())) < len(labels):  # with everybody alone there is no other way
        return None
    found = steadiness(together, labels)
    numbers = zip(who.tolist(), found.own.tolist(), found.other.tolist(), found.nearest.tolist(), strict=True)
    clients = {names[i]: _known(own=own, other=other) | {"nearest": nearest} for i, own, other, nearest in numbers}
    clusters = _known(**{str(k): share for k, share in found.clusters.items()})
    return {"bootstraps": BOOTSTRAPS, **_known(within=found.within, across=found.across), "clusters": clusters,
            "clients": clients}


def _known(**shares: float) -> dict[str, float]:
    """Shares that are numbers: who is alone in its cluster has no share with it."""
    return {name: round(share, DIGITS) for name, share in shares.items() if not np.isnan(share)}


def reason(clusters: Mapping[str, Any]) -> str:
    """How many clusters, and why, as in: One cluster: 20 clients cannot be told apart (p = 0.43)."""
    count, words = clusters["count"], clusters["why"].get("words", "")
    if count == 1:
        return f"One cluster: {words}." if words else "One cluster."
    return f"Clusters: {count}. {words[0].upper()}{words[1:]}." if words else f"Clusters: {count}."


def steadiness_said(clusters: Mapping[str, Any]) -> str:
    """How steady they are, in a sentence; empty where that is not known."""
    found = clusters["why"].get("steady")
    if not found:
        return ""
    within, across = percent(found["within"]), percent(found["across"])
    own = {name: client["own"] for name, client in found["clients"].items() if "own" in client}
    least = min(own, key=own.__getitem__, default=None)
    worst = f"; least {least} ({percent(own[least])})" if least is not None and own[least] < found["within"] else ""
    return (f"Steady: pairs of one cluster stay together in {within} of {found['bootstraps']} bootstraps over rows,"
            f" pairs of different clusters come together in {across}{worst}.")


def percent(share: float) -> str:
    """A share in whole per cent, in which 100 is all and 0 is none."""
    whole = round(100 * share)
    return f"{min(whole, 99) if share < 1 else whole} %" if share >= 0.01 or not share else "1 %"
