"""What is read from a finished run to stand in a table, by name."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from umbel.nets.objective import Metric
from umbel.reproduce import cost
from umbel.runs.experiment import Experiment
from umbel.runs.sealed import Sealed

NEAR = 0.01  # a curve has converged when it stays within a point of its end


@dataclass(frozen=True)
class Finished:
    """A run folder with its result, and how the table reads it."""

    folder: Path
    reading: Mapping[str, str]  # judge, phase
    target: float | None = None  # score, in [0, 1] where it is a share

    @cached_property
    def _whole(self) -> tuple[dict[str, Any], dict[str, Any], list[dict[str, Any]]]:
        return Sealed(self.folder).finished()

    @property
    def info(self) -> dict[str, Any]:
        """result.json."""
        return self._whole[0]

    @property
    def clients(self) -> list[dict[str, Any]]:
        """What clusters.json says of each client."""
        people: list[dict[str, Any]] = self._whole[1]["clients"]
        return people

    @property
    def records(self) -> list[dict[str, Any]]:
        """rounds.jsonl."""
        return self._whole[2]

    @property
    def kind(self) -> str:
        """Which of the three scores is read: `a|b` is b where there is no a, `a.weighted` weighs by rows."""
        kinds = str(self.reading.get("judge", self.info["headline"])).partition(".")[0].split("|")
        return next((kind for kind in kinds if self.info["score"][kind]), kinds[-1])

    def score(self, statistic: str = "") -> float | None:
        """Of the judged kind; what the run is judged by unless the reading says otherwise."""
        statistic = statistic or self.reading.get("judge", "").partition(".")[2] or "value"
        scores = self.info["score"][self.kind]
        return None if scores is None else float(scores[statistic])


def _newcomers(run: Finished) -> float | None:
    """Mean score of those who joined late."""
    late = int(Experiment.from_toml(run.folder / "recipe.toml").join.partition("@")[0])
    people = run.clients[-late:]
    scores = [each["score"][run.kind] for each in people if run.kind in each["score"]]
    return 100 * sum(scores) / len(scores) if scores else None


def _converged(run: Finished) -> int:
    """The first round from which the score stays within a point of its last value, or is better."""
    curve = [(each["round"] + 1, each["score"]["value"]) for each in run.records if each.get("score")]
    metric = Metric.of(run.info["metric"])
    below = [round for round, value in curve if metric.gain(value, curve[-1][1]) < -NEAR]
    return int(next(round for round, _ in curve if not below or round > below[-1]))


def _sizes(run: Finished) -> list[int]:
    return sorted(Counter(run.info["clusters"]["labels"].values()).values())


def _rounds(run: Finished) -> int | None:
    assert run.target is not None
    return cost.rounds_to(run.records, run.target)


def _megabits(run: Finished) -> float | None:
    rounds, model = _rounds(run), run.info["model"]["name"]
    if rounds is None or model not in cost.PARAMETERS:
        return None
    clusters = run.info["params"].get("clusters", 1)
    return cost.megabits(run.info["method"], rounds, model, run.info["fraction"], clusters)


def _traffic(run: Finished) -> float | None:
    assert run.target is not None
    sent = cost.bytes_to(run.records, run.target)
    return None if sent is None else 8 * sent / 1e6 / float(run.info["clients"])


def _clustering(run: Finished) -> Mapping[str, Any]:
    """The record of the round in which clusters were formed: the last of pre-training, or the first of all."""
    last = max(0, run.info["rounds"]["pretrain"] - 1)
    record: Mapping[str, Any] = next(each for each in run.records if each["round"] == last)
    return record


def _client_seconds(run: Finished) -> float:
    """Seconds of the phase in which clients describe themselves, by client."""
    return float(_clustering(run)["seconds"][run.reading["phase"]]) / float(run.info["clients"])


def _server_seconds(run: Finished) -> float:
    spent = _clustering(run)["seconds"]
    return float(spent["wall"]) - sum(float(value) for phase, value in spent.items() if phase != "wall")


def _upload(run: Finished) -> float:
    """Kilobytes (1,024) that a client sends so that it can be placed."""
    sent = _clustering(run)["bytes"][run.reading["phase"]]["up"]
    return float(sum(amount for kind, amount in sent.items() if kind != "size")) / 1024 / float(run.info["clients"])


def _percent(value: float | None) -> float | None:
    return None if value is None else 100 * value


class TableMeasure(NamedTuple):
    """One number with its words and digits; those without `of` are not read from runs."""

    of: Callable[[Finished], float | None] | None
    words: str
    digits: int = 2
    spread: Callable[[Finished], float | None] | None = None  # over clients, where there is one


def _agreement(name: str) -> Callable[[Finished], float | None]:
    return lambda run: run.info["clusters"][name]


def _evidence(name: str, place: int = -1) -> Callable[[Finished], float | None]:
    """A number by which the method explains its clusters; of a list, the one at `place`."""
    def of(run: Finished) -> float | None:
        value = run.info["clusters"]["why"].get(name)
        return None if value is None else float(value[place] if place >= 0 else value)
    return of


MEASURES: dict[str, TableMeasure] = {
    "accuracy": TableMeasure(lambda run: _percent(run.score()), "accuracy, %",
                             spread=lambda run: _percent(run.score("std"))),
    "newcomers": TableMeasure(_newcomers, "newcomers' accuracy, %"),
    **{name: TableMeasure(_agreement(name), name) for name in
       ("ari", "ami", "homogeneity", "completeness", "v_measure")},
    "clusters": TableMeasure(lambda run: run.info["clusters"]["count"], "clusters", 0),
    "smallest": TableMeasure(lambda run: _sizes(run)[0], "clients of the smallest cluster", 0),
    "largest": TableMeasure(lambda run: _sizes(run)[-1], "clients of the largest cluster", 0),
    "cut": TableMeasure(_evidence("cut"), "threshold"),
    "score": TableMeasure(lambda run: _percent(_evidence("score")(run)), "validation score, %"),
    "hopkins": TableMeasure(_evidence("hopkins"), "Hopkins statistic"),
    "c_v_x": TableMeasure(_evidence("variation", 0), "c_v of pull", 3),
    "c_v_y": TableMeasure(_evidence("variation", 1), "c_v of push", 3),
    "rounds": TableMeasure(_rounds, "rounds to the target", 0),
    "converged": TableMeasure(_converged, "rounds to converge", 0),
    "megabits": TableMeasure(_megabits, "megabits to the target", 2),
    "moved": TableMeasure(_traffic, "megabits really moved until then, a client", 2),
    "client_seconds": TableMeasure(_client_seconds, "seconds of a client", 4),
    "server_seconds": TableMeasure(_server_seconds, "seconds of the server", 4),
    "upload": TableMeasure(_upload, "kilobytes a client sends", 3),
    "angle": TableMeasure(None, "degrees"),
    "distance": TableMeasure(None, "distance", 3),
    "rises": TableMeasure(None, "rises: 1 = yes", 0),
    "formula": TableMeasure(None, "megabits by formula, fitted rounds"),
    "contrast": TableMeasure(None, "distance between / within groups"),
}
