"""Which plan serves clients best? One model, clusters, everybody alone, with and without fine-tuning, after a trial.

All plans were tried on the same clients, batches and first model, and each client's validation rows scored all of them:
what is compared is a client's score under one plan with its score under another. Scores come as gains, so that more is
better whichever way the metric points.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from umbel.clustering.cuts import plural
from umbel.clustering.said import p_said
from umbel.nets.objective import Metric

Floats = NDArray[np.float64]

LEVEL = 0.05  # of the two-sided test
FEW_ROWS = 20  # validation rows of all clients together below which nothing is compared
HALF = 0.5  # standard errors that a simpler plan may be behind the best one


class Plan(NamedTuple):
    """What could be trained."""

    name: str
    groups: str  # one, clusters or alone
    tuned: bool  # whether clients go on from the model that they are given, with their own rows


PLANS = (Plan("one model", "one", False), Plan("one model, fine-tuned", "one", True),
         Plan("clusters", "clusters", False), Plan("clusters, fine-tuned", "clusters", True),
         Plan("everybody alone", "alone", True))  # the simplest of those that share first
ONE = 0


class Judged(NamedTuple):
    """A plan after the trial."""

    plan: int  # its place in PLANS
    mean: float  # over clients, in the metric
    low: float  # 95 % of how much better it serves a client than one model, in the metric's gains; NaN of one client
    high: float
    worst: float  # the score of the client that it serves worst


class Worth(NamedTuple):
    """What a trial says."""

    plans: tuple[Judged, ...]
    chosen: int  # in PLANS
    over: int  # clients that were compared
    rows: int  # of theirs, for validation
    differs: bool  # whether the plan that was chosen is better than one model, by a paired test
    gain: float  # how much better, in the metric's gains
    p: float  # of that; 1 where there is nothing to compare


def worth(tried: list[int], scores: Floats, rows: NDArray[np.int64], metric: Metric, least: int = FEW_ROWS) -> Worth:
    """Judge the plans of these places in PLANS by (plans, clients) scores, NaN where a client's rows define none.

    With fewer validation rows than `least`, all clients' together, nothing is compared.
    Of plans by which clients learn from others the one with the best mean is taken, or the simplest one that is behind
    it by no more than HALF a standard error. A short trial flatters who learns alone, since it leaves those who learn
    from others little time: that plan must beat this one by a paired test.
    """
    whole = np.isfinite(scores).all(0) & (rows > 0)
    scores, rows = scores[:, whole], rows[whole]
    clients = scores.shape[1]
    if not clients or rows.sum() < least or ONE not in tried:
        return Worth((), ONE, clients, int(rows.sum()), differs=False, gain=0.0, p=1.0)
    sign = 1.0 if metric.higher_is_better else -1.0
    means = sign * scores.mean(1)
    shared = [k for k, plan in enumerate(tried) if PLANS[plan].groups != "alone"]
    best = max(shared, key=lambda k: means[k])
    chosen = next(k for k in sorted(shared, key=lambda k: tried[k])
                  if means[best] - means[k] <= HALF * error_of(scores[best] - scores[k]) + 1e-12)
    for k in set(range(len(tried))) - set(shared):
        if means[k] > means[best] and p_of(sign * (scores[k] - scores[best])) <= LEVEL:
            chosen = k
    gains = sign * (scores - scores[tried.index(ONE)])
    judged = []
    for k, plan in enumerate(tried):
        wide = error_of(gains[k]) * (float(stats.t.ppf(1 - LEVEL / 2, clients - 1)) if clients > 1 else np.nan)
        worst = float(scores[k].min() if sign > 0 else scores[k].max())
        mean = float(gains[k].mean())
        judged.append(Judged(plan, float(scores[k].mean()), mean - wide, mean + wide, worst))
    p = p_of(gains[chosen])
    return Worth(tuple(judged), tried[chosen], clients, int(rows.sum()), p <= LEVEL, float(gains[chosen].mean()), p)


def error_of(gains: Floats) -> float:
    """The standard error of a mean over clients; 0 of a single one, who is all there are."""
    return float(gains.std(ddof=1) / len(gains) ** 0.5) if len(gains) > 1 else 0.0


def p_of(gains: Floats) -> float:
    """Two-sided, by Student's t; without any spread a difference is one, and no difference is none."""
    mean, error = float(gains.mean()), error_of(gains)
    if abs(mean) < 1e-12 or len(gains) < 2:
        return 1.0
    return float(2 * stats.t.sf(abs(mean) / error, len(gains) - 1)) if error else 0.0


def called(plan: int, clusters: int) -> str:
    """A plan's name with the number of its clusters."""
    name = PLANS[plan].name
    return name.replace("clusters", plural(clusters)) if clusters > 1 else name


def advice(found: Worth, clusters: int, metric: Metric) -> str:
    """The recommendation and its reason, a sentence without its full stop."""
    if not found.plans:
        return (f"too few validation rows ({found.rows}) to say which plan is worth more, so the simplest one: one"
                " model")
    over = f"paired over {found.over} clients" if found.over > 1 else "of one client"
    if found.chosen == ONE:
        return f"one model: in a short trial no other plan served clients better ({over})"
    gain = metric.said(abs(found.gain), 1)
    gain = gain.replace("%", "points")
    chance = "" if found.differs else ", which could be chance"
    return (f"{called(found.chosen, clusters)}: in a short trial clients scored {gain} better than with one model"
            f"{chance} ({p_said(found.p)}, {over})")
