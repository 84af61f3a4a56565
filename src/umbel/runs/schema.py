"""What version 2 of a run folder's files says, and version 1 in its words.

Version 1, of umbel 0.1, knew accuracy alone: it said `accuracy` where there is `score` now, named no metric, and pooled
nothing. Files are put into today's words once, where they are read, here.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from umbel.files import read_bytes, read_json
from umbel.nets.objective import ACCURACY

SCHEMA = 2
READ = (1, SCHEMA)
Json = dict[str, Any]


def read_result(folder: Path) -> Any:
    """result.json of a run folder, in today's words."""
    info = read_json(folder / "result.json")
    return result_of(info) if isinstance(info, dict) else info


def read_clusters(folder: Path) -> Any:
    """clusters.json of a run folder, in today's words."""
    return clusters_of(read_json(folder / "clusters.json"))


def read_records(folder: Path) -> list[dict[str, Any]]:
    """rounds.jsonl of a run folder, in today's words."""
    return [record_from(line) for line in read_bytes(folder / "rounds.jsonl").splitlines()]


def record_from(line: bytes) -> dict[str, Any]:
    """One line of rounds.jsonl."""
    return record_of(json.loads(line))


def record_of(record: Json) -> Json:
    """A line of rounds.jsonl. One file may hold both: a run that was begun by version 1 can go on."""
    if "metric" in record:
        return record
    now = {**_renamed(record), "metric": ACCURACY._asdict()}
    now |= {name: _summary(now[name]) for name in ("score", "validation") if now.get(name)}
    if "final" in now:
        now["final"] = {start: None if clients is None else _scored(clients) for start, clients in now["final"].items()}
    return now


def result_of(info: Json) -> Json:
    """What result.json holds."""
    if info.get("schema") != 1:
        return info
    scores = {start: score if start == "missing" else _summary(score) for start, score in info["accuracy"].items()}
    return {**_renamed(info), "schema": SCHEMA, "metric": ACCURACY._asdict(), "score": scores}


def clusters_of(table: Json) -> Json:
    """What clusters.json holds."""
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
