"""The page of a diagnosis: one HTML file, with figures that no script draws, which people can show each other."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from umbel.diagnosis.diagnose import Diagnosis
from umbel.diagnosis.screen import answered, cost_said, gain_said, lost_said, rounds_said
from umbel.nets.objective import Metric
from umbel.pages.page import asset, render

HUES = 8  # colours of clusters in page.css; more clusters share them
EDGE = 0.06  # of a figure's width that is left free at each side
ROWS = 60  # clients of a cluster that are named


class Bar(NamedTuple):
    """One plan in the figure: places are shares of its width."""

    plan: str
    chosen: bool
    mean: str
    gain: str
    low: float | None
    at: float
    high: float | None


class Dot(NamedTuple):
    """One client in the plane."""

    name: str
    x: float
    y: float
    hue: int


class Group(NamedTuple):
    """One cluster."""

    number: int
    hue: int
    clients: Sequence[str]
    more: int  # clients that are not named
    marks: str
    shares: Sequence[tuple[str, float]]  # of each label, and how tall its bar is


def write(found: Diagnosis) -> str:
    """The whole page."""
    info, metric = found.info, found.metric
    return render(
        "diagnosis.html", title=title(found), lead=lead(found), info=info, metric=metric, setting=setting(found),
        answers=[(each["kind"], answered(each), each["words"]) for each in info["differences"]],
        groups=groups(info), dots=dots(info), bars=bars(info["plans"], metric), zero=_zero(info["plans"]),
        costs=[each for each in (cost_said(found), info["reveals"], lost_said(found)) if each],
        trial=rounds_said(info["cost"]["trial_rounds"]), labels=info["labels"], css=asset("page.css"),
    )


def title(found: Diagnosis) -> str:
    """The answer in a line."""
    if found.info["chosen"] is None:
        return "One model" if not found.differ else f"Clients differ in {_and(found.differ)}"
    words = str(found.info["chosen"])
    return f"{words[0].upper()}{words[1:]}"


def lead(found: Diagnosis) -> str:
    """The reason for it: the recommendation without what the title says."""
    words = found.advice.removeprefix(f"{title(found)}: ")
    return f"{words[0].upper()}{words[1:]}"


def setting(found: Diagnosis) -> str:
    """What was diagnosed."""
    info = found.info
    return (f"{info['data']}, {info['scenario']}: {info['clients']} clients with {info['rows']:,} different rows;"
            f" model {info['model']}, seed {info['seed']}")


def _and(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]])) if words else ""


def groups(info: dict[str, Any]) -> list[Group]:
    """Clusters, with the shares of their labels in units of the largest."""
    clusters = info["clusters"]
    tall = max((share for each in clusters for share in each["shares"]), default=0.0) or 1.0
    return [Group(k, k % HUES, each["clients"][:ROWS], max(0, len(each["clients"]) - ROWS), each["marks"],
                  [(name, share / tall) for name, share in zip(info["labels"], each["shares"], strict=True)])
            for k, each in enumerate(clusters)]


def dots(info: dict[str, Any]) -> list[Dot]:
    """Clients in the plane, in shares of its width and height: both axes have one scale."""
    hue = {name: k % HUES for k, each in enumerate(info["clusters"]) for name in each["clients"]}
    points = info["places"]
    sides = [[place[axis] for place in points.values()] for axis in (0, 1)]
    wide = max((max(side) - min(side) for side in sides if side), default=0.0) or 1.0
    middles = [(max(side) + min(side)) / 2 if side else 0.0 for side in sides]

    def at(value: float, axis: int) -> float:
        return 0.5 + (1 - 2 * EDGE) * (value - middles[axis]) / wide

    return [Dot(name, at(place[0], 0), 1 - at(place[1], 1), hue.get(name, 0)) for name, place in points.items()]


def _reach(plans: Sequence[dict[str, Any]]) -> tuple[float, float]:
    """The least and the largest gain that the figure shows."""
    ends = [0.0, *(end for plan in plans for end in (plan["low"], plan["high"]) if end is not None)]
    low, high = min(ends), max(ends)
    return (low, high) if high > low else (low - 1, high + 1)


def _place(value: float, plans: Sequence[dict[str, Any]]) -> float:
    low, high = _reach(plans)
    return EDGE + (1 - 2 * EDGE) * (value - low) / (high - low)


def _zero(plans: Sequence[dict[str, Any]]) -> float:
    """Where a plan stands that is as good as one model."""
    return _place(0.0, plans)


def bars(plans: Sequence[dict[str, Any]], metric: Metric) -> list[Bar]:
    """Plans, and how much better than one model each serves a client."""
    made = []
    for plan in plans:
        known = plan["low"] is not None
        low, high = (plan["low"], plan["high"]) if known else (0.0, 0.0)
        made.append(Bar(plan["plan"], plan["chosen"], metric.shown(plan["score"], 1), gain_said(plan, metric),
                        _place(low, plans) if known else None, _place((low + high) / 2, plans),
                        _place(high, plans) if known else None))
    return made
