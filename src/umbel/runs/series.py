"""Runs that belong together in one folder: what is still to be done of them, and what each may cost.

Runs are experiments by the names of their folders. A series that was stopped goes on where it stopped.
"""

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from umbel.errors import UmbelError
from umbel.federation import ledger
from umbel.fields import bounded
from umbel.files import refuse_linked_folder, write_atomically
from umbel.runs.experiment import Experiment
from umbel.runs.sealed import Sealed
from umbel.runs.session import Session, same_recipe

Runs = Mapping[str, Experiment]
MOST = 1000  # runs of a series
AS_LONG = 10  # a run that is given another's cost has at most so many times its rounds


class Equal(NamedTuple):
    """Runs that are given what other runs have cost, in `steps` of local training or in `bytes`."""

    what: str
    of: Mapping[str, str]  # a run's name -> the name of the run before it that says how much


def sessions(runs: Runs, out: Path, data_dir: Path | None, workers: int = 1,
             equal: Equal | None = None) -> Iterator[Session]:
    """The runs still to do. Those under `out` that were done or begun earlier must be of the same series."""
    for folder in (out, *(out / name for name in runs)):
        refuse_linked_folder(folder)
    if (out / "recipe.toml").exists():
        raise UmbelError(f"The folder {out} must hold a comparison's runs. It is a run itself: choose another --out.")
    for name, experiment in runs.items():
        if (out / name / "recipe.toml").exists():
            same_recipe(out / name, experiment)
    for name, experiment in runs.items():
        folder = out / name
        if (folder / "result.json").exists():
            continue
        if (folder / "recipe.toml").exists():
            session = Session.resume(folder, experiment, data_dir, workers=workers)
        else:
            session = Session.start(experiment, folder, data_dir, workers)
        if equal is not None and name in equal.of:
            budget = sum(map(COSTS[equal.what], Sealed(out / equal.of[name]).records()))
            session.enough = partial(_spent, COSTS[equal.what], budget, session.algorithm.pretrain)
        yield session


def _steps(record: Mapping[str, Any]) -> int:
    return int(record.get("steps", 0))


def _bytes(record: Mapping[str, Any]) -> int:
    sent: Mapping[str, Any] = ledger.summary(record["bytes"])
    return int(sent["down"] + sent["up"])


COSTS: dict[str, Callable[[Mapping[str, Any]], int]] = {"steps": _steps, "bytes": _bytes}  # of a round


def _spent(cost: Callable[[Mapping[str, Any]], int], budget: int, pretrain: int,
           records: Sequence[Mapping[str, Any]]) -> bool:
    """Whether another round like the last one would lead farther away from the budget than this one stands."""
    spent = sum(map(cost, records)) + cost(records[-1]) / 2
    return bool(records[-1]["round"] >= pretrain and spent > budget)


def combinations(words: Sequence[str], option: str) -> list[dict[str, str]]:
    """All combinations of the values in texts such as "lr=0.01,0.1", the last name changing first."""
    values: dict[str, list[str]] = {}
    for text in words:
        name, sign, rest = text.partition("=")
        each = [value.strip() for value in rest.split(",")]
        if not (name.strip() and sign and all(each)):
            raise UmbelError(f"What {option} goes through is written NAME=VALUE,VALUE, as in {option} lr=0.01,0.1. Got"
                             f" '{text}' instead.")
        if name.strip() in values or len(set(each)) < len(each):
            raise UmbelError(f"{option} names each setting and each of its values once. Got '{text}' again.")
        values[name.strip()] = each
    bounded(len(found := list(product(*values.values()))), "combinations", option, ge=1, le=MOST)
    return [dict(zip(values, one, strict=True)) for one in found]


def csv_of(lines: Sequence[Mapping[str, Any]]) -> bytes:
    """Lines as a table; lists and tables in it are JSON."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(dict.fromkeys(name for line in lines for name in line)))
    writer.writeheader()
    writer.writerows({name: json.dumps(value) if isinstance(value, list | dict) else value
                      for name, value in line.items()} for line in lines)
    return text.getvalue().encode()


def write_csv(path: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    """Lines as a file."""
    write_atomically(path, csv_of(lines))
