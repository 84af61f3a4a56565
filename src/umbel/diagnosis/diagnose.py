"""The diagnosis of a federation: what differs, why these clients, what it is worth, what it costs and reveals."""

import json
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from umbel.algorithms.auto import Auto, advised, clusters_of, metric_of, worth_of
from umbel.algorithms.base import Local, State
from umbel.clustering.differences import Difference, differences
from umbel.clustering.parts import Parts, read
from umbel.clustering.said import p_said
from umbel.clustering.worth import PLANS, Worth, called
from umbel.diagnosis.separating import clusters, kind_names, places
from umbel.errors import UmbelError
from umbel.federation.door import Cohort, Federation, NobodyAnswered
from umbel.federation.ledger import Line
from umbel.fields import bounded
from umbel.files import make_folder, write_atomically
from umbel.nets.objective import Metric
from umbel.seeds import generator

SCHEMA = 1
ROUNDS = 20  # of the run that is planned, where nobody says


@dataclass(frozen=True)
class Diagnosis:
    """What was found out; `info` is what diagnosis.json holds."""

    info: dict[str, Any]

    @property
    def differ(self) -> list[str]:
        """In what clients differ: labels, looks, meanings, amounts; an empty list where in nothing."""
        return [each["kind"] for each in self.info["differences"] if each["found"]]

    @property
    def advice(self) -> str:
        """What to train, and why, in a sentence."""
        return str(self.info["advice"])

    @property
    def metric(self) -> Metric:
        """What plans were judged by."""
        return Metric.of(self.info["metric"])

    def __repr__(self) -> str:
        return f"<Diagnosis of {self.info['data']}: {', '.join(self.differ) or 'nothing differs'}. {self.advice}>"

    def save(self, path: str | Path) -> Path:
        """Write it as JSON; `umbel.report` makes a page of it."""
        make_folder(Path(path).parent)
        write_atomically(Path(path), (json.dumps(self.info, indent=2) + "\n").encode())
        return Path(path)


def diagnose(fed: Federation, *, local: Local | None = None, rounds: int = ROUNDS, trial: bool = True) -> Diagnosis:
    """Find out in what the clients of a federation differ, and what serves them best.

    Clients describe parts of their rows; where they differ, a trial of a tenth of `rounds`, the length of the run that
    is planned, compares one model, clusters and everybody alone, trained as `local` says. Without `trial` nothing is
    trained.
    """
    bounded(rounds, "rounds", "the run that is planned", ge=1, le=1_000_000)
    return diagnosed(fed, Auto(local=local or Local()).for_run(rounds), rounds, trial)


def diagnosed(fed: Federation, auto: Auto, rounds: int, trial: bool = True) -> Diagnosis:
    """The same by a method with its settings, bound to a run of so many rounds."""
    fed.remember({}, {})  # as a run begins
    fed.ledger.drain()
    fed.lost.clear()
    fed.arrive(0)
    try:
        state = auto.init(fed, fed.seed)
    except NobodyAnswered as error:
        raise UmbelError(f"Nothing can be said of these clients: {error}.") from error
    evidence, tried, broken = fed.ledger.drain(), 0, ""
    if trial and len(state.evidence["who"]) > 1:
        try:
            while "plan" not in state.evidence:
                everybody = (fed.online & (state.labels >= 0)).nonzero().flatten()
                state, tried = auto.round(fed, state, Cohort(everybody, tried)), tried + 1
                fed.arrive(tried)
        except NobodyAnswered as error:
            broken = f"the trial of plans was lost, since {error}"
    return Diagnosis(_info(fed, state, rounds, tried, evidence, fed.ledger.drain(), broken))


def _info(fed: Federation, state: State, rounds: int, tried: int, evidence: list[Line], trial: list[Line],
          broken: str) -> dict[str, Any]:
    who = [fed.names[i] for i in state.evidence["who"].tolist()]
    parts, kinds = read(state.evidence["parts"]), kind_names(fed.net.objective)
    found = differences(parts, generator(fed.seed, "differences"), max(1, fed.net.objective.groups))
    labels = state.evidence["tried"][state.evidence["who"]].numpy()
    worth, noun = worth_of(state), "label" if fed.net.objective.classes else "bin of the target"
    metric = metric_of(state) if worth else fed.net.objective.metric
    whole = 8 * fed.net.parameters * len(who)  # bytes of a round of FedAvg: a model of float32, both ways
    return {
        "schema": SCHEMA, "data": fed.provenance.data, "scenario": str(fed.provenance.setup.get("scenario", "own")),
        "model": fed.net.name, "seed": fed.seed, "clients": len(fed.names), "described": len(who),
        "rows": int(parts.counts.sum()), "metric": metric._asdict(), "rounds": rounds,
        "differences": [_said(each, parts, who, noun) for each in found],
        "labels": kinds,
        "places": dict(zip(who, places(parts).tolist(), strict=True)),
        "clusters": clusters(parts, labels, who, kinds, {each.kind: each for each in found}),
        "plans": [] if worth is None else _plans(worth, clusters_of(state.evidence["tried"]), whole),
        "chosen": None if worth is None or not worth.plans else called(worth.chosen,
                                                                      clusters_of(state.evidence["tried"])),
        "over": None if worth is None else {"clients": worth.over, "validation_rows": worth.rows},
        "advice": _advice(state, len(who), tried, broken),
        "cost": {"evidence_bytes": _bytes(evidence), "evidence_rounds": _bytes(evidence) / whole if whole else 0.0,
                 "trial_bytes": _bytes(trial), "trial_rounds": tried, "trial_share": _bytes(trial) / (whole * rounds)},
        "reveals": _reveals(parts, tried, noun),
        "lost": dict(fed.lost),
    }


def _said(each: Difference, parts: Parts, who: list[str], noun: str) -> dict[str, Any]:
    """One kind of difference, as numbers and in a sentence without its full stop."""
    out = [who[i] for i in range(len(who)) if each.out[i]]
    return {"kind": each.kind, "asked": not each.unasked, "found": bool(each.found), "p": each.p,
            "strength": each.strength, "clients": out, "words": _words(each, parts, out, noun)}


def _words(each: Difference, parts: Parts, out: list[str], noun: str) -> str:
    if each.unasked:
        return f"not asked: {each.unasked}"
    rows = parts.counts.sum(1)
    if each.kind == "amounts":
        return (f"{rows.min()} to {rows.max()} rows (median {median(rows.tolist()):g}; coefficient of variation"
                f" {each.strength:.2f})")
    p = p_said(each.p if each.p is not None else 1.0)
    if not each.found:
        return f"no difference was found ({p})"
    strength = {"labels": f"{each.strength:.2f} bits that a row's {noun} tells about whose it is",
                "looks": f"{100 * each.strength:.0f} % of the variance inside a {noun} is between clients",
                "meanings": f"{100 * each.strength:.0f} % of clients use other names than most"}[each.kind]
    return f"{strength} ({p}){_who(out, len(rows))}"


def _who(out: list[str], clients: int, most: int = 4) -> str:
    """Who stands out, as the end of a sentence."""
    if not out:
        return ""
    if len(out) == clients:
        return "; all clients stand out"
    if 2 * len(out) > clients:
        return f"; {len(out)} of {clients} clients stand out"
    named = ", ".join(out[:most]) + (f" and {len(out) - most} more" if len(out) > most else "")
    return f"; {named} stand{'s' if len(out) == 1 else ''} out most"


def _plans(worth: Worth, clusters: int, whole: int) -> list[dict[str, Any]]:
    """What each plan is worth, and what a round of it sends."""
    return [{"plan": called(each.plan, clusters), "groups": PLANS[each.plan].groups, "tuned": PLANS[each.plan].tuned,
             "score": each.mean, "low": _number(each.low), "high": _number(each.high), "worst": each.worst,
             "bytes_a_round": 0 if PLANS[each.plan].groups == "alone" else whole,
             "chosen": each.plan == worth.chosen} for each in worth.plans]


def _number(value: float) -> float | None:
    return value if value == value else None


def _advice(state: State, described: int, tried: int, broken: str) -> str:
    if described < 2:
        return "There is one client to be heard: nothing can be compared, and it trains alone."
    if broken:
        return f"Take one model: {broken}."
    sentence = advised(state) if "plan" in state.evidence else (
        "clients differ, and what that is worth was not tried")
    return f"{sentence[0].upper()}{sentence[1:]}."


def _bytes(lines: list[Line]) -> int:
    return sum(sum(line.bytes) for line in lines)


def _reveals(parts: Parts, tried: int, noun: str) -> str:
    """What left the clients."""
    many = len(parts.owner) / max(1, len(parts.counts))
    words = (f"Each client sent how many rows of each {noun} it holds, and {many:.0f} parts on average: a part is the"
             f" mean of at least two rows, as {parts.vector.shape[1]} numbers")
    if tried:
        words += (f". In {tried} round{'s' if tried > 1 else ''} of trial it sent trained models, and then how well"
                  " each plan serves its validation rows")
    return f"{words}. No row left it."
