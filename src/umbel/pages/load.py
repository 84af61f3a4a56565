"""Run folders in, plain data out. Only this module reads run folders; no data set is read.

A folder that is not a finished run of this version is refused in one sentence. What a method leaves no evidence of is
None, and its section is left out.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from umbel.errors import UmbelError
from umbel.files import read_json, refuse_linked_folder, there
from umbel.nets.objective import Metric
from umbel.runs.arrays import EVIDENCE, check_evidence
from umbel.runs.schema import compared_of
from umbel.runs.sealed import Sealed
from umbel.runs.tensors import Arrays

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class ClientResult:
    """What clusters.json says of one client."""

    name: str
    cluster: int  # -1 = not placed
    truth: int | None
    score: dict[str, float]  # by starting point; what does not exist is left out
    holds: dict[int, int] | None  # training rows by label


@dataclass(frozen=True)
class Evidence:
    """What the clusters rest on. Clients that joined later are the last of `who`, and not in the matrix.

    Where landmarks were grouped, `who` is these and those who founded clusters of their own: a sample of the clients.
    """

    who: Ints  # (m,) positions of the clients that were described
    proximity: Floats | None = None  # (p, p), p <= m
    linkage: Floats | None = None  # (p - 1, 4)
    cut: float | None = None
    curve: Floats | None = None  # (q, 4): threshold, clusters, score, 1 where chosen
    trajectory: Floats | None = None  # (m, 2, classes): pull and push
    exemplars: Ints | None = None  # positions of clients
    hopkins: float | None = None
    variation: tuple[float, float] | None = None
    landmarks: int | None = None  # as many clients were grouped by their distances, where not all were


@dataclass(frozen=True)
class Run:
    """A finished run."""

    path: Path
    info: dict[str, Any]  # result.json
    records: list[dict[str, Any]]  # rounds.jsonl
    clients: list[ClientResult]
    evidence: Evidence
    recipe: str
    environment: dict[str, Any]
    gram: Floats | None = field(repr=False, default=None)  # (n, n) inner products of clients' last local models
    gram_names: list[str] = field(default_factory=list)  # the clients that have such a model
    forecasts: dict[str, Any] | None = field(repr=False, default=None)  # forecasts.json, of a regression

    @property
    def headline(self) -> str:
        """Which of the three scores the method is judged by."""
        return str(self.info["headline"])

    @property
    def metric(self) -> Metric:
        """What the run is judged by."""
        return Metric.of(self.info["metric"])

    @property
    def score(self) -> float | None:
        """That score: mean over clients, or over all their rows together."""
        score = self.info["score"][self.headline]
        return float(score["value"]) if score else None

    @property
    def truth(self) -> list[int] | None:
        """The true group of each client, where there are groups."""
        groups = [client.truth for client in self.clients if client.truth is not None]
        return groups if len(groups) == len(self.clients) else None

    @property
    def labels(self) -> list[int]:
        """The cluster of each client."""
        return [client.cluster for client in self.clients]


def expand(path: Path) -> list[Path]:
    """A run folder is itself; a comparison's folder is the runs in it, of tuned methods those that were chosen."""
    if (path / "recipe.toml").exists() or not path.is_dir():
        return [path]
    inside = sorted(child.parent for child in path.glob("*/recipe.toml"))
    for child in inside:
        refuse_linked_folder(child)
    for file in (path / "compare.json", path / "vary.json"):
        if there(file):  # in its order; of tuned methods those that were chosen
            rows = compared_of(read_json(file), file)
            shown = [name for row in rows for name in row.get("runs", ())]
            methods = [row["method"] for row in rows]  # of a comparison that does not name its runs
            places = {name: k for k, name in reversed(list(enumerate(shown or methods)))}
            inside = [child for child in inside if child.name in places or not shown]
            names = {child: child.name if shown else child.name.rpartition("-s")[0] for child in inside}
            inside.sort(key={child: places.get(name, len(places)) for child, name in names.items()}.__getitem__)
    return inside or [path]


def load(path: Path) -> Run:
    """One finished run."""
    _refuse_unfinished(path)
    seal = Sealed(path)
    info, table, records = seal.finished()
    clients = [_client(row) for row in table["clients"]]
    evidence = _evidence(seal, len(clients))
    gram_names, gram = ([], None) if evidence.proximity is not None else _gram(seal, clients)
    return Run(path, info, records, clients, evidence, seal.recipe_text(), seal.environment(), gram, gram_names,
               seal.forecasts(table))


def _refuse_unfinished(path: Path) -> None:
    """Raise where a folder is not ours, or its run has not ended."""
    if not path.is_dir():
        what = "It is a file" if path.exists() else "There is none"
        raise UmbelError(f"A report is made of run folders. {what} at {path}.")
    if not there(path / "recipe.toml"):
        raise UmbelError(f"The folder {path} must be a run of umbel, or hold some. There is no recipe.toml in it.")
    if not there(path / "result.json"):
        raise UmbelError(f"The run in {path} is not finished. Go on with: umbel run --resume --out {path}")


def _client(row: dict[str, Any]) -> ClientResult:
    holds = row.get("holds")
    return ClientResult(row["name"], row["cluster"], row["truth"], row["score"],
                        None if holds is None else {int(label): rows for label, rows in holds.items()})


def _evidence(seal: Sealed, clients: int) -> Evidence:
    """The small parts of the evidence; signatures and anchor models stay on the disk."""
    if not seal.there("evidence.safetensors"):
        return Evidence(np.arange(clients))
    file = Arrays(seal.checked("evidence.safetensors"))
    parts = {name: file.get(name) for name in EVIDENCE if name in file.names}
    check_evidence(parts, clients, file.path)

    def array(name: str, least: int = 0) -> Floats | None:
        return parts[name].double().numpy() if name in parts and (not least or len(parts[name]) >= least) else None

    def number(name: str) -> float | None:
        return float(parts[name]) if name in parts else None

    def places(name: str) -> Ints | None:
        return parts[name].numpy() if name in parts else None

    who, variation = places("who"), array("variation")
    return Evidence(
        np.arange(clients) if who is None else who, array("proximity", 2), array("linkage", 1), number("cut"),
        array("curve", 2) if "curve" in parts else array("sweep", 2),  # as version 0.1.0 calls it
        array("signature/trajectory"), places("exemplars"), number("hopkins"),
        None if variation is None else (float(variation[0]), float(variation[1])),
        int(parts["landmarks"]) if "landmarks" in parts else None,
    )


def _gram(seal: Sealed, clients: list[ClientResult]) -> tuple[list[str], Floats | None]:
    """Inner products of clients' last local models, read layer by layer: all that a map of them needs."""
    if not seal.there("memory.safetensors"):
        return [], None
    memory = Arrays(seal.checked("memory.safetensors"))
    kept = [name.split("/last/") for name in sorted(memory.names) if name.count("/last/") == 1]
    layers = [layer for name, layer in kept if name == kept[0][0]]
    names = [client.name for client in clients
             if all(f"{client.name}/last/{layer}" in memory.names for layer in layers)]
    if not layers or len(names) < 3:
        return [], None
    total = np.zeros((len(names), len(names)))
    with np.errstate(over="ignore", invalid="ignore"):  # of models that diverged there is no map
        for layer in layers:
            leaves = [memory.get(f"{name}/last/{layer}").double() for name in names]
            if len({leaf.shape for leaf in leaves}) > 1:
                raise UmbelError(f"The file {memory.path} must have models of one network. Their layers '{layer[:60]}'"
                                 " differ in shape.")
            rows = torch.stack(leaves).flatten(1).numpy()
            rows = rows - rows.mean(0)
            total += rows @ rows.T
    return (names, total) if np.isfinite(total).all() else ([], None)
