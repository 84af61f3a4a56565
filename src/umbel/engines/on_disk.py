"""Clients and the name of their model in a folder, for other processes of this machine."""

import io
import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from umbel.data.clients import Change, Pool, Population
from umbel.engines.local import LocalClients
from umbel.files import Bytes, write_atomically
from umbel.nets.model import Model
from umbel.nets.objective import objective_of
from umbel.nets.wrap import build
from umbel.scratch import MORE_ROOM


def write_clients(folder: Path, people: Population, net: Model, seed: int, advice: str = MORE_ROOM) -> None:
    """Everything a worker must know, but for the jobs; the model by its name, so it must be a registered one.

    `advice` is what to do where there is no room.
    """
    rows: dict[str, Any] = {}
    for which, parts in (("train", people.train), ("test", people.test), ("validation", people.validation or ())):
        if not parts:
            continue
        rows |= {which: np.concatenate(parts), f"{which}_ends": np.cumsum([len(part) for part in parts])}
    changed = [part for change in people.changes for part in (change.train, change.test)]
    rows |= {"changed": np.concatenate(changed) if changed else np.empty(0, dtype=np.int64),
             "changed_ends": np.cumsum([len(part) for part in changed], dtype=np.int64)}
    packed = io.BytesIO()
    np.savez(packed, **rows)
    facts = {"names": people.names, "objective": net.objective.described(), "seed": seed, "model": net.name,
             "shape": net.shape, "levels": net.levels, "precision": net.precision, "mean": net.mean.flatten().tolist(),
             "std": net.std.flatten().tolist(), "ordered": people.ordered, "late": people.late,
             "changes": [[change.round, change.client, change.group] for change in people.changes]}
    contents: dict[str, Bytes | Iterable[Bytes]] = {
        **{f"{name}.npy": _npy(part) for name, part in people.pool._asdict().items() if part is not None},
        "rows.npz": packed.getvalue(), "facts.json": json.dumps(facts).encode(),
    }
    for name, content in contents.items():
        write_atomically(folder / name, content, durable=False, private=True, advice=advice)


def _npy(array: NDArray[Any]) -> Iterator[Bytes]:
    """What np.save writes; that does not say why it cannot."""
    array, head = np.ascontiguousarray(array), io.BytesIO()
    np.lib.format.write_array_header_1_0(head, np.lib.format.header_data_from_array_1_0(array))
    yield head.getvalue()
    yield array.reshape(-1).view(np.uint8).data


def clients_from(folder: Path) -> tuple[LocalClients, Model]:
    """The population that the simulator wrote down; pixels are mapped, so all workers share one copy."""
    facts = json.loads((folder / "facts.json").read_text())
    with np.load(folder / "rows.npz", allow_pickle=False) as rows:
        train, test, changed = (np.split(rows[which], rows[f"{which}_ends"][:-1])
                                for which in ("train", "test", "changed"))
        held = np.split(rows["validation"], rows["validation_ends"][:-1]) if "validation" in rows else None
    objective = objective_of(facts["objective"])
    pool = Pool(**{path.stem: np.load(path, mmap_mode="c") for path in folder.glob("*.npy")})
    changes = tuple(Change(round, client, changed[2 * k], changed[2 * k + 1], group)
                    for k, (round, client, group) in enumerate(facts["changes"]))
    people = Population(pool, train, test, np.zeros(len(train), dtype=np.int64), objective, facts["names"],
                        ordered=facts["ordered"], late=tuple(facts["late"]), changes=changes, validation=held)
    net = build(facts["model"], tuple(facts["shape"]), objective, tuple(facts["mean"]), tuple(facts["std"]),
                tokens=pool.x.dtype == np.int64, levels=tuple(facts["levels"]))
    return LocalClients(people, facts["seed"], torch.device("cpu")), replace(net, precision=facts["precision"])
