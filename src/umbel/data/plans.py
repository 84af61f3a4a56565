"""What a scenario drew, as row numbers and names only: it can be saved, and made into clients again."""

import json
import os
import zipfile
import zlib
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from umbel.data import shift
from umbel.data.clients import IntArray, Pool, Population
from umbel.data.partition import ClientRows
from umbel.data.shift import Images
from umbel.data.sources import Dataset
from umbel.errors import UmbelError


@dataclass(frozen=True)
class Plan:
    """What a scenario drew. Rows count through the training set, then on through the test set."""

    train: ClientRows
    test: ClientRows
    shift: list[str]  # one a client, for its training and test rows alike
    truth: IntArray  # (clients,)
    classes: int  # 0 where the targets are none
    test_mode: str
    facts: dict[str, Any]  # JSON; `groups` is 0 where there are no true groups


def fingerprint(dataset: Dataset) -> str:
    """Sixteen hex digits of a data set's targets: a plan fits no other rows."""
    digest = blake2b(f"{dataset.name} {len(dataset.y_train)} ".encode(), digest_size=8)
    for y in (dataset.y_train, dataset.y_test):
        digest.update(np.ascontiguousarray(y, dtype="<f4" if y.dtype.kind == "f" else "<i8").data)
    return digest.hexdigest()


def realise(plan: Plan, dataset: Dataset) -> Population:
    """The clients of a plan; their pool has each (row, shift) once."""
    if plan.facts.get("data_hash") != fingerprint(dataset):
        drawn_on = plan.facts.get("data", "another data set")
        raise UmbelError(f"A plan fits only the rows it was drawn on: {drawn_on}. Got {dataset.label} instead.")
    train: ClientRows = [np.empty(0, dtype=np.int64)] * len(plan.train)
    test: ClientRows = list(train)
    pools: list[Pool] = []
    start = 0
    for kind in dict.fromkeys(plan.shift):  # one pool for each kind of shift, one behind the other
        members = [i for i, own in enumerate(plan.shift) if own == kind]
        rows = np.unique(np.concatenate([part for i in members for part in (plan.train[i], plan.test[i])]))
        for i in members:
            train[i] = start + np.searchsorted(rows, plan.train[i])
            test[i] = start + np.searchsorted(rows, plan.test[i])
        pools.append(Pool(*shift.apply(kind, *_take(dataset, rows), rows)))
        start += len(rows)
    pool = Pool(np.concatenate([p.x for p in pools]), np.concatenate([p.y for p in pools]))
    return Population(pool, train, test, plan.truth, dataset.objective, facts=plan.facts)


def _take(dataset: Dataset, rows: IntArray) -> tuple[Images, IntArray]:
    """Ascending rows of (training set, then test set)."""
    size = len(dataset.y_train)
    old, new = rows[rows < size], rows[rows >= size] - size
    x = np.concatenate([dataset.x_train[old], dataset.x_test[new]])
    return x, np.concatenate([dataset.y_train[old], dataset.y_test[new]])


def save_plan(path: str | Path, plan: Plan) -> None:
    """Write a plan as npz; a file that is there already is replaced only when the new one is whole."""
    path = Path(path)
    about = {"plan": 1, "classes": plan.classes, "test_mode": plan.test_mode, "facts": plan.facts}
    arrays: dict[str, Any] = {"truth": plan.truth, "shift": np.array(plan.shift), "about": np.array(json.dumps(about))}
    for which, rows in (("train", plan.train), ("test", plan.test)):
        arrays[f"{which}_rows"] = np.concatenate(rows)
        arrays[f"{which}_ends"] = np.cumsum([len(part) for part in rows])
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with unfinished.open("wb") as file:
            np.savez_compressed(file, **arrays)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def load_plan(path: str | Path) -> Plan:
    """Read what `save_plan` wrote."""
    try:
        with Path(path).open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            about = json.loads(str(file["about"]))
            train, test = (_parts(file[f"{which}_rows"], file[f"{which}_ends"]) for which in ("train", "test"))
            truth, kinds = file["truth"], file["shift"].tolist()
            if about["plan"] != 1 or not len(train) == len(test) == len(truth) == len(kinds):
                raise ValueError
            return Plan(train, test, kinds, truth, about["classes"], about["test_mode"], about["facts"])
    except FileNotFoundError:
        raise UmbelError(f"There is no partition file '{path}'.") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, zipfile.BadZipFile, zlib.error):
        raise UmbelError(f"'{path}' must be a partition that umbel saved. It is another kind or cut short.") from None


def _parts(rows: IntArray, ends: IntArray) -> ClientRows:
    """One array a client again, from all rows in a line and where each client's end."""
    if not len(ends) or ends[-1] != len(rows):
        raise ValueError
    return np.split(rows, ends[:-1])
