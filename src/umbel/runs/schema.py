"""What the files of a run folder hold: one description, by which they are written, read, drawn and documented.

A file is held against it where it is read, so that what comes after may rely on it, and where it is written, so that
the two cannot drift apart. Version 1, of umbel 0.1, knew accuracy alone: it said `accuracy` where there is `score` now,
named no metric, and pooled nothing. Its files are put into today's words first, here and nowhere else.
"""

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

from umbel.data.prepare import MOST_COLUMNS, SCALINGS, Preparation
from umbel.errors import UmbelError
from umbel.files import parse_json
from umbel.nets.model import PRECISIONS
from umbel.nets.objective import ACCURACY
from umbel.runs.evaluate import FORESEEN, STARTS
from umbel.runs.kinds import (
    FLAG,
    MOST,
    NAME,
    NUMBER,
    TEXT,
    Anything,
    ByName,
    Kind,
    ListOf,
    Number,
    OneOf,
    Table,
    Text,
    Whole,
    hold,
    if_there,
    or_null,
)

SCHEMA = 2
Json = dict[str, Any]

# Parts

COUNT = Whole()
LABEL = Whole(-1, 2**31)  # of a cluster; -1 = not placed
ROUND = Whole(-1, 10**9)
BYTES = Whole(0, 2**63)
SECONDS = Number(-1e9, 1e12)  # a clock may be set back
AGREEMENT = or_null(Number(-1000, 1.01))  # chance is 0, and rounding may pass 1
DIGITS = Text(20, r"-?\d{1,18}", "a whole number")
SHARE = Number(0, 1)
SCALE = Number(-1e30, 1e30)  # of inputs, which are float32
METRIC = Table({"name": Text(100, r"(?s).+"), "unit": Text(100), "higher_is_better": FLAG, "pooled": FLAG})
METRICS = ByName(or_null(NUMBER))
SUMMARY: dict[str, Kind] = {
    "mean": or_null(NUMBER), "std": or_null(NUMBER), "worst_decile": or_null(NUMBER), "weighted": NUMBER, "over": COUNT,
    "value": NUMBER, "pooled": METRICS,
}
FINAL = Table({
    "clients": ByName(Table({"score": or_null(NUMBER), "loss": NUMBER, "rows": COUNT})), "pooled": METRICS,
})
OPTIONS = Table({
    "rounds": ROUND, "fraction": Number(0, 1), "eval_every": COUNT, "average_last": COUNT, "fine_tune": or_null(COUNT),
    "keep": OneOf(("last", "best")), "uplink": if_there(TEXT), "bound": if_there(Number(0)),
})
STEADY = Table({  # shares of bootstraps over rows in which clients are together; who is alone has none with its cluster
    "bootstraps": COUNT, "within": SHARE, "across": SHARE, "clusters": ByName(SHARE, DIGITS),
    "clients": ByName(Table({"own": if_there(SHARE), "other": SHARE, "nearest": LABEL})),
})
OBJECTIVE = Table({"kind": NAME, "labels": if_there(ListOf(TEXT)), "bins": if_there(ListOf(NUMBER))})
UNDERSTOOD = Table({  # of data of one's own; a folder of arrays has a shape, and no columns
    "columns": if_there(ByName(Table({
        "missing": COUNT, "least": if_there(NUMBER), "most": if_there(NUMBER), "category": if_there(ListOf(TEXT)),
        "levels": if_there(COUNT),
    }))),
    "kept_out": if_there(ByName(TEXT)), "target": if_there(Table({"name": NAME, "classes": if_there(ListOf(TEXT))})),
    "rows": COUNT, "rows_without_target": if_there(COUNT), "split": if_there(NAME), "weight": if_there(NAME),
    "client": NAME, "objective": NAME,
    "sites": ByName(COUNT), "shape": if_there(ListOf(COUNT)),
})
DIGEST = Text(128, r"[0-9a-f]+", "a digest, in hex")
FILE = Text(100, r"(state|memory|evidence|best)(--?\d{1,12})?\.safetensors|[a-z]+\.(json|npz)", "the name of a file")
LINES = Table({"count": COUNT, "bytes": COUNT, "digest": DIGEST})

# Files

RECIPE = Table(
    {"method": if_there(NAME), "rounds": if_there(ROUND), "settings": if_there(ByName(Anything(2)))}, Anything(2))

RECORD = Table({
    "round": ROUND, "asked": if_there(COUNT), "trained": ListOf(COUNT), "clusters": COUNT, "unplaced": COUNT,
    "ari": if_there(AGREEMENT), "moved": if_there(COUNT), "metric": METRIC,
    "score": if_there(Table(SUMMARY), empty=True),
    "validation": if_there(Table(SUMMARY), empty=True),  # empty where no rows define the metric
    "bytes": ByName(ByName(ByName(BYTES), OneOf(("down", "up")))), "steps": if_there(COUNT),
    "seconds": Table({"wall": SECONDS}, SECONDS), "lost": ByName(ListOf(TEXT)),
    "waiting": if_there(ByName(ListOf(Whole(0, 2**40), 2, 2))), "lost_in_a_row": if_there(COUNT),
    "final": if_there(Table({start: or_null(FINAL) for start in STARTS})), "options": if_there(OPTIONS),
})

RESULT = Table({
    "schema": Whole(SCHEMA, SCHEMA), "status": TEXT, "method": NAME, "params": ByName(Anything()), "data": NAME,
    "data_part": NAME, "scenario": or_null(TEXT),
    "scenario_facts": or_null(Table({"understood": if_there(UNDERSTOOD)})), "partition_hash": or_null(NAME),
    "test_mode": or_null(NAME),
    "model": Table({"name": NAME, "parameters": COUNT, "head": TEXT}), "seed": COUNT, "clients": Whole(1, 2**31),
    "rounds": Table({"pretrain": ROUND, "after": ROUND, "asked": if_there(ROUND)}),
    "steps": if_there(COUNT), "validation": if_there(or_null(NUMBER)),
    "kept": if_there(Table({"round": ROUND, "validation": or_null(NUMBER)})), "fraction": Number(0, 1),
    "uplink": if_there(TEXT), "bound": if_there(Number(0)), "engine": or_null(NAME), "device": NAME,
    "precision": NAME, "workers": if_there(COUNT),
    "headline": OneOf(STARTS),
    "clusters": Table({
        "count": COUNT, "labels": ByName(LABEL), "truth": or_null(ByName(Whole(-MOST, MOST))), "ari": AGREEMENT,
        "ami": AGREEMENT, "homogeneity": AGREEMENT, "completeness": AGREEMENT, "v_measure": AGREEMENT,
        "unplaced": COUNT,
        "why": Table({
            "cut": if_there(NUMBER), "score": if_there(NUMBER), "tried": if_there(COUNT), "words": if_there(TEXT),
            "hopkins": if_there(NUMBER), "variation": if_there(ListOf(NUMBER, 2, 2)),
            **{name: if_there(SHARE) for name in ("looks", "absent", "shares", "enough", "by_shares")},
            "contrast": if_there(NUMBER),
            "pays": if_there(Table({"gain": NUMBER, "error": if_there(NUMBER), "p": SHARE})),
            "steady": if_there(STEADY),
        }),
    }),
    "metric": METRIC,
    "score": Table({
        **{start: or_null(Table({**SUMMARY, "rounds_averaged": COUNT})) for start in STARTS},
        "missing": ByName(TEXT),
    }),
    "bytes": Table({"down": BYTES, "up": BYTES, "by_kind": ByName(BYTES), "evaluate": BYTES}),
    "seconds": Table(dict.fromkeys(("total", "per_round", "evaluate", "signature", "clustering"), SECONDS)),
    "lost": ByName(COUNT, TEXT), "versions": ByName(NAME),
})

CLUSTERS = Table({
    "members": ByName(ListOf(NAME), DIGITS),
    "clients": ListOf(Table({
        "name": NAME, "cluster": LABEL, "truth": or_null(Whole(-MOST, MOST)),
        "score": Table({start: if_there(NUMBER) for start in STARTS}),
        "holds": if_there(or_null(ByName(COUNT, DIGITS))), "steady": if_there(SHARE),
    }), 1),
})

FORESEEN_LINES = ListOf(ListOf(or_null(NUMBER), 1, FORESEEN.rows), 1, FORESEEN.outputs)  # an output each
FORECASTS = Table({
    "outputs": ListOf(NAME, 1, FORESEEN.outputs), "unit": TEXT, "model": OneOf(STARTS),
    "sites": ByName(Table({"cluster": LABEL, "rows": COUNT, "truth": FORESEEN_LINES, "forecast": FORESEEN_LINES})),
})

CHECKPOINT = Table({
    "schema": Whole(SCHEMA, SCHEMA), "round": or_null(ROUND), "files": ByName(DIGEST, FILE),
    "memory_rounds": ByName(ROUND), "recipe": RECIPE, "prolonged": if_there(ROUND), "partition_hash": or_null(NAME),
    "versions": ByName(NAME), "lines": LINES, "lines_tested": if_there(LINES), "seal": DIGEST,
})
FIRST_CHECKPOINT = Table({name: CHECKPOINT.names[name] for name in ("round", "files", "memory_rounds")})  # umbel 0.1's

ENVIRONMENT = Table({
    "versions": ByName(NAME), "system": if_there(NAME), "device": if_there(NAME), "cores": if_there(or_null(COUNT)),
    "threads": if_there(COUNT),
})

MODEL = Table({
    "name": NAME, "shape": ListOf(Whole(1, 2**31), 1, 8),
    "objective": if_there(OBJECTIVE),
    "classes": if_there(COUNT), "tokens": if_there(FLAG), "head": TEXT, "mean": ListOf(SCALE), "std": ListOf(SCALE),
    "parameters": COUNT, "precision": OneOf(PRECISIONS),
})

PREPARATION = Table({
    "preparation": Whole(1, 1), "scaling": OneOf(SCALINGS), "target": TEXT, "client": TEXT,
    "objective": or_null(OBJECTIVE), "columns": ListOf(Table({
        "name": NAME, "mean": NUMBER, "std": Number(1e-100), "missing": FLAG,
        "levels": if_there(ListOf(Whole(-MOST, MOST))),
    }), 1, MOST_COLUMNS),
})

ROSTER = Table({"run": NAME, "fingerprint": NAME, "names": ListOf(NAME)})  # roster.json, of a run on sites

COMPARED = ListOf(Table({"method": NAME, "runs": if_there(ListOf(NAME))}))  # compare.json, as far as it is read

# Reading


def result_of(info: Any, file: object) -> Json:
    """What result.json holds, in today's words and as it is described."""
    found = _version(info, file)
    if found == 1:
        info = _in_todays_words(info, _new_result, file)
    return _held(info, RESULT, file)


def checkpoint_of(checkpoint: Any, file: object) -> Json:
    """What checkpoint.json holds; that of umbel 0.1 has no version, and no seal."""
    first = isinstance(checkpoint, dict) and set(checkpoint) == set(FIRST_CHECKPOINT.names)
    _version(checkpoint, file)
    return _held(checkpoint, FIRST_CHECKPOINT if first else CHECKPOINT, file)


def clusters_of(table: Any, file: object) -> Json:
    """What clusters.json holds."""
    return _held(_in_todays_words(table, _new_clusters, file), CLUSTERS, file)


def record_of(record: Any, file: object) -> Json:
    """A line of rounds.jsonl. One file may hold both: a run that was begun by version 1 can go on."""
    if isinstance(record, dict) and "metric" not in record:
        record = _in_todays_words(record, _new_record, file)
    lost = record.get("lost") if isinstance(record, dict) else None
    if isinstance(lost, dict) and any(isinstance(why, str) for why in lost.values()):  # one a client, once
        record = {**record, "lost": {name: [why] if isinstance(why, str) else why for name, why in lost.items()}}
    return _held(record, RECORD, file)


def records_of(lines: bytes, file: Path) -> list[Json]:
    """All lines of rounds.jsonl."""
    return [record_of(parse_json(line, f"Line {k} of {file}"), f"line {k} of {file}")
            for k, line in enumerate(lines.splitlines(), 1)]


def check_together(info: Json, clusters: Json, records: Sequence[Json], folder: Path) -> None:
    """Raise where the three files of a finished run contradict each other."""
    people, about = clusters["clients"], info["clusters"]
    labels = {client["name"]: client["cluster"] for client in people}
    truth = {client["name"]: client["truth"] for client in people}
    known = {group is not None for group in truth.values()}
    members: dict[str, list[str]] = {}
    for client in people:
        members.setdefault(str(client["cluster"]), []).append(client["name"])
    rounds = info["rounds"]["pretrain"] + info["rounds"]["after"]
    placed = [label for label in labels.values() if label >= 0]
    rules = {
        "each client one name of its own": len(labels) == len(people),
        f"as many clients, result.json {info['clients']}": len(people) == info["clients"],
        "the same clusters of clients": (
            list(labels.items()) == list(about["labels"].items()) and members == clusters["members"]),
        "the same true groups": about["truth"] == (truth if known == {True} else None) and len(known) == 1,
        "as many clusters and clients without one": (about["count"], about["unplaced"]) == (
            len(set(placed)), len(people) - len(placed)),
        f"the rounds -1 to {rounds - 1}, in order": [record["round"] for record in records] == [
            *range(-1, min(rounds, len(records)))],
        "one metric": all(record["metric"] == info["metric"] for record in records),
        "the trained clients among all": all(i < len(people) for record in records for i in record["trained"]),
    }
    for rule, kept in rules.items():
        if not kept:
            raise UmbelError(f"The files result.json, clusters.json and rounds.jsonl in {folder} must have {rule}. They"
                             " contradict each other: one was changed or is of another run.")


def forecasts_of(table: Any, clusters: Json, file: object) -> Json:
    """What forecasts.json holds, which must be of the clients of clusters.json."""
    found = _held(table, FORECASTS, file)
    cluster = {client["name"]: client["cluster"] for client in clusters["clients"]}
    outputs = len(found["outputs"])
    for name, site in found["sites"].items():
        lines = [*site["truth"], *site["forecast"]]
        rules = {
            "a client of the run in its cluster": cluster.get(name) == site["cluster"],
            f"truth and forecast of {outputs} outputs": len(site["truth"]) == len(site["forecast"]) == outputs,
            "one number for each row": {len(line) for line in lines} == {len(lines[0])},
        }
        for rule, kept in rules.items():
            if not kept:
                raise UmbelError(f"The 'sites.{name[:60]}' in {file} must have {rule}. It has not.")
    if len(found["sites"]) > FORESEEN.sites:
        raise UmbelError(f"The 'sites' in {file} must be at most {FORESEEN.sites}. Got {len(found['sites'])} instead.")
    return found


def compared_of(lines: Any, file: object) -> list[Json]:
    """What compare.json holds, as far as it is read."""
    held: list[Json] = hold(lines, COMPARED, file)
    return held


def model_of(about: Any, file: object) -> Json:
    """What model.json holds. No file of a few bytes describes a network of gigabytes."""
    found = _held(about, MODEL, file)
    if prod(found["shape"]) > max(found["parameters"], 2**20):
        raise UmbelError(f"The 'shape' in {file} must be of inputs that a network with {found['parameters']:,}"
                         f" parameters takes. Got {found['shape']} instead.")
    for name in ("classes", "columns", "vocabulary"):
        outputs = found.get("objective", found).get(name)
        if outputs is not None and not Whole(0, found["parameters"]).fits(outputs):
            raise UmbelError(f"The '{name}' in {file} must be a whole number, of at most the {found['parameters']:,}"
                             " parameters of the network. It is another.")
    if {len(found[name]) for name in ("mean", "std")} - {1, found["shape"][0]}:
        raise UmbelError(f"The 'mean' and 'std' in {file} must have one number, or {found['shape'][0]} for an input of"
                         f" {found['shape']}. Got {len(found['mean'])} and {len(found['std'])} instead.")
    return found


def preparation_of(about: Any, file: object) -> Preparation:
    """What preparation.json holds."""
    return Preparation.of(_held(about, PREPARATION, file), file)


def _version(found: Any, file: object) -> Any:
    """The version that a file says it is of; a later one is refused."""
    version = found.get("schema") if isinstance(found, dict) else None
    if type(version) is int and version > SCHEMA:
        raise UmbelError(f"{file} was written by a newer umbel: its schema is above {SCHEMA}, which this one reads."
                         " Install the newer one.")
    return version if type(version) is int else None


def _held(value: Any, kind: Kind, file: object) -> Json:
    held: Json = hold(value, kind, file)
    return held


# Version 1


def _in_todays_words(old: Any, new: Any, file: object) -> Any:
    try:
        return new(old)
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise UmbelError(f"What stands in {file} must be as umbel wrote it. It was changed or cut short.") from error


def _new_record(record: Json) -> Json:
    now = {**_renamed(record), "metric": ACCURACY._asdict()}
    now |= {name: _summary(now[name]) or {} for name in ("score", "validation") if name in now}
    if "final" in now:
        now["final"] = {start: None if clients is None else _scored(clients) for start, clients in now["final"].items()}
    return now


def _new_result(info: Json) -> Json:
    scores = {start: score if start == "missing" else _summary(score) for start, score in info["accuracy"].items()}
    return {**_renamed(info), "schema": SCHEMA, "metric": ACCURACY._asdict(), "score": scores}


def _new_clusters(table: Json) -> Json:
    return {**table, "clients": [_renamed(client) for client in table["clients"]]}


def _renamed(old: Json) -> Json:
    return {"score" if name == "accuracy" else name: value for name, value in old.items()}


def _summary(score: Mapping[str, Any] | None) -> Json | None:
    return {**score, "value": score["mean"], "pooled": {"accuracy": score["weighted"]}} if score else None


def _scored(clients: Mapping[str, Mapping[str, float]]) -> Json:
    rows = sum(client["rows"] for client in clients.values())
    right = sum(client["accuracy"] * client["rows"] for client in clients.values())
    scores = {name: {"score": client["accuracy"], "loss": client["loss"], "rows": client["rows"]}
              for name, client in clients.items()}
    return {"clients": scores, "pooled": {"accuracy": right / rows} if rows else {}}
