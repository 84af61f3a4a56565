"""A worker process: trains one client at a time for the simulator that started it, and knows no more than a node would.

It reads a job from its standard input and writes the answer to its standard output: a line of JSON, then the bytes of
tensors. A task is looked up by name; nothing that comes in is imported or evaluated.
"""

import json
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from umbel import tree
from umbel.data.clients import Pool, Population, Work
from umbel.engines.local import LocalClients
from umbel.federation.door import Call, Cohort
from umbel.federation.tasks import TASKS
from umbel.nets import model as models
from umbel.tree import Tree

KINDS = {str(kind): kind for kind in (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool)}


def send(pipe: IO[bytes], header: dict[str, Any], values: Tree) -> None:
    """A line of JSON that says what follows, and the bytes of each tensor; one that has two names travels once."""
    leaves = {name: leaf.contiguous() for name, leaf in tree.named(values).items()}
    first: dict[tuple[int, int, torch.dtype], str] = {}
    same = {name: first.setdefault((leaf.data_ptr(), leaf.nbytes, leaf.dtype), name) for name, leaf in leaves.items()}
    told = {name: [same[name], str(leaf.dtype), list(leaf.shape)] for name, leaf in leaves.items()}
    pipe.write(json.dumps(header | {"leaves": told}).encode() + b"\n")
    for name, leaf in leaves.items():
        if same[name] == name and leaf.numel():
            pipe.write(_bytes(leaf))
    pipe.flush()


def receive(pipe: IO[bytes]) -> tuple[dict[str, Any], Tree] | None:
    """What `send` wrote at the other end, or None when that end is closed."""
    line = pipe.readline()
    if not line:
        return None
    header = json.loads(line)
    leaves: dict[str, Tensor] = {}
    for name, (same, dtype, shape) in header.pop("leaves").items():
        if same != name:
            leaves[name] = leaves[same].view(shape)
            continue
        leaves[name] = torch.empty(shape, dtype=KINDS[dtype])
        if leaves[name].numel() and pipe.readinto(_bytes(leaves[name])) < leaves[name].nbytes:  # type: ignore[attr-defined]
            return None
    return header, tree.nested(leaves)


def _bytes(leaf: Tensor) -> memoryview:
    """The memory of a contiguous tensor, not a copy of it."""
    return leaf.view(-1).view(torch.uint8).numpy().data


def write_clients(folder: Path, people: Population, net: models.Model, seed: int) -> None:
    """Tell other processes of this machine who the clients are."""
    np.save(folder / "x.npy", people.pool.x)
    np.save(folder / "y.npy", people.pool.y)
    rows: dict[str, Any] = {}
    for which, parts in (("train", people.train), ("test", people.test)):
        rows |= {which: np.concatenate(parts), f"{which}_ends": np.cumsum([len(part) for part in parts])}
    np.savez(folder / "rows.npz", **rows)
    told = {"names": people.names, "classes": net.classes, "seed": seed, "model": net.name, "shape": net.shape,
            "precision": net.precision, "mean": net.mean.flatten().tolist(), "std": net.std.flatten().tolist()}
    (folder / "told.json").write_text(json.dumps(told))


def clients_from(folder: Path) -> tuple[LocalClients, models.Model]:
    """The population that the simulator wrote down; pixels are mapped, so all workers share one copy."""
    told = json.loads((folder / "told.json").read_text())
    with np.load(folder / "rows.npz", allow_pickle=False) as held:
        train, test = (np.split(held[which], held[f"{which}_ends"][:-1]) for which in ("train", "test"))
    pool = Pool(np.load(folder / "x.npy", mmap_mode="c"), np.load(folder / "y.npy", mmap_mode="c"))
    people = Population(pool, train, test, np.zeros(len(train), dtype=np.int64), told["classes"], told["names"])
    net = models.build(told["model"], tuple(told["shape"]), told["classes"], told["mean"], told["std"])
    return LocalClients(people, told["seed"], torch.device("cpu")), replace(net, precision=told["precision"])


def main(folder: str) -> None:
    """Work until the simulator closes the pipe."""
    clients, net = clients_from(Path(folder))
    torch.set_num_threads(1)
    out, sys.stdout = sys.stdout.buffer, sys.stderr  # a stray print must not end up among the answers
    shared: Tree = {}
    while (job := receive(sys.stdin.buffer)) is not None:
        header, values = job
        shared = shared if header["told"] else values.get("shared", {})
        i, name = header["client"], clients.population.names[header["client"]]
        cohort = Cohort(torch.tensor([i]), header["round"], header["phase"])
        options = {key: tuple(value) if isinstance(value, list) else value for key, value in header["options"].items()}
        each = {key: leaf[None] if torch.is_tensor(leaf) else tree.stack([leaf])
                for key, leaf in values.get("inputs", {}).items()}
        clients.diary.pages = {name: {header["round"] - 1: values["memory"]}} if "memory" in values else {}
        call = Call(TASKS[header["task"]], cohort, Work(*header["work"]), shared, each, options)
        sent = clients.answer(net, call, 0)
        kept = clients.diary.pages.get(name, {}).get(header["round"], {})
        with suppress(BrokenPipeError):  # the simulator is gone; the next read says so
            send(out, {}, {"send": sent} | ({"keep": kept} if kept else {}))
