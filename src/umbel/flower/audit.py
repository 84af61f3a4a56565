"""The log of a site: a line of JSON for every message, written before its answer leaves.

    when     the time of day, UTC
    site, run, task, phase, round, jobs
             what was asked, as far as it could be read; `task` is "describe" where a server asks who the site is
    in, out  bytes of arrays that came and that left
    left     names and shapes of the arrays that left, those of the first job where there are several
    told     the words that left: name, rows, the policy's changes ...
    refused  why nothing left, in a sentence

What cannot be logged does not leave. The file is its owner's alone, and is never written behind a link.
"""

import json
import os
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flwr.app import RecordDict

from umbel.errors import UmbelError
from umbel.files import append, make_folder, opened, parse_json, read_text, there
from umbel.flower.wire import facts_of, shown

FOLDER = "_audit"  # in memory-dir, where folders of runs begin with a letter or a digit
SAID = ("name", "train", "test", "fingerprint", "version", "policy")  # words of a site that are told of
LARGEST = 2**30  # bytes of a log that is read


def place(memory: Path, name: str) -> Path:
    """Where a site's log lies unless its configuration says otherwise."""
    return memory / FOLDER / f"{name}.jsonl"


def entry(site: str, request: Mapping[str, Any], came: RecordDict, said: Mapping[str, Any],
          left: RecordDict) -> dict[str, Any]:
    """The line of one message: its words, what came with it, what is said, what leaves."""
    line: dict[str, Any] = {"when": datetime.now(UTC).isoformat(timespec="seconds"), "site": site,
                            "run": shown(request.get("run", ""))}
    line |= {"task": "describe"} if "about" not in request else _asked(str(request["about"]))
    line |= {"in": _bytes(came), "out": _bytes(left)}
    first = next(iter(left.array_records.values()), None)
    line |= {"left": {name: list(array.shape) for name, array in first.items()}} if first else {}
    told = {name: said[name] for name in SAID if name in said}
    line |= {"told": told} if told else {}
    refused = said.get("refused", said.get("silent"))
    return line | ({"refused": shown(refused)} if refused is not None else {})


def _asked(about: str) -> dict[str, Any]:
    """What a call asks for; of one that cannot be read, nothing."""
    try:
        facts = facts_of(about)
    except UmbelError:
        return {"task": "?"}
    words = {name: shown(facts[name]) for name in ("task", "phase")}
    become = facts["options"].get("become")
    return words | {"round": facts["round"], "jobs": facts["jobs"]} | ({"become": shown(become)} if become else {})


def _bytes(content: RecordDict) -> int:
    return sum(len(array.data) for arrays in content.array_records.values() for array in arrays.values())


def write(path: Path, line: Mapping[str, Any]) -> None:
    """Add a line; one that a crash cut off is ended first, so that it spoils no other."""
    make_folder(path.parent)
    append(path, (b"\n" if _cut_off(path) else b"") + json.dumps(line).encode() + b"\n", private=True)


def _cut_off(path: Path) -> bool:
    if not there(path):
        return False
    with opened(path) as file:
        if not os.fstat(file.fileno()).st_size:
            return False
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


def read(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a log, the first first; one that was cut off is left out."""
    for text in read_text(path, LARGEST).splitlines():
        try:
            line = parse_json(text, "A line")
        except UmbelError:
            continue
        if isinstance(line, dict):
            yield line
