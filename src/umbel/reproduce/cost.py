"""What it costs to reach a score: rounds, bytes, and the megabits that PACFL prints."""

from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any

from umbel.nets.objective import Metric

PARAMETERS = {"lenet5": 62_006, "resnet9": 6_621_540}  # PACFL counts the 3 x 32 x 32 net for grey images as well
GLOBAL = {"lenet5": 11_014, "resnet9": 52_324}  # of the last two layers: all that LG-FedAvg sends


def rounds_to(records: Iterable[Mapping[str, Any]], target: float) -> int | None:
    """The first round, from 1, after which the score was at least as good as `target`; None = never."""
    reached = (record["round"] + 1 for record in records
               if record.get("score") and not Metric.of(record["metric"]).better(target, record["score"]["value"]))
    return next(reached, None)


def bytes_to(records: Iterable[Mapping[str, Any]], target: float) -> int | None:
    """All bytes sent until `target` is reached, both ways: signatures and sweeps included, evaluation left out."""
    kept = list(records)
    round = rounds_to(kept, target)
    if round is None:
        return None
    so_far = accumulate(_traffic(record["bytes"]) for record in kept)
    return next(amount for amount, record in zip(so_far, kept, strict=True) if record["round"] + 1 == round)


def _traffic(pages: Mapping[str, Mapping[str, Mapping[str, int]]]) -> int:
    """Bytes of one record, which has them by phase, direction and kind."""
    return sum(amount for phase, ways in pages.items() if phase != "evaluate"
               for kinds in ways.values() for amount in kinds.values())


def megabits(method: str, rounds: int, model: str = "lenet5", share: float = 0.1, clusters: int = 2) -> float:
    """PACFL's megabits: rounds x share of the clients x (down + up) x parameters x 32 / 10^6, on average a client.

    Not printed in the paper; all filled cells of its Tables 9 and 10 fit. Signatures are not counted. IFCA receives
    every cluster's model; SCAFFOLD counts three models, where its true traffic is four.
    """
    models = {"ifca": clusters + 1, "scaffold": 3}.get(method, 2)
    return rounds * share * models * (GLOBAL if method == "lg" else PARAMETERS)[model] * 32 / 1e6
