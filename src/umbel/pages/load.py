"""Run folders in, plain data out. Only this module reads run folders; no data set is read.

A folder that is not a finished run of this version is refused in one sentence. What a method leaves no evidence of is
None, and its section is left out.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from umbel.errors import UmbelError
from umbel.files import read_json, read_text, refuse_irregular, refuse_linked_folder, there
from umbel.nets.objective import Metric
from umbel.runs.evaluate import STARTS
from umbel.runs.schema import READ, SCHEMA, read_clusters, read_records, read_result

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

    @property
    def headline(self) -> str:
        """Which of the three scores the method is judged by."""
        return str(self.info["headline"])

    @property
    def metric(self) -> Metric:
        """What the run is judged by."""
        return Metric(**self.info["metric"])

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
    """A run folder is itself; a comparison's folder is the runs in it."""
    if (path / "recipe.toml").exists() or not path.is_dir():
        return [path]
    inside = sorted(child.parent for child in path.glob("*/recipe.toml"))
    for child in inside:
        refuse_linked_folder(child)
    try:  # in the order of the comparison
        methods = [row["method"] for row in read_json(path / "compare.json")]
        inside.sort(key=lambda child: methods.index(child.name.rpartition("-s")[0]))
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return inside or [path]


def load(path: Path) -> Run:
    """One finished run."""
    info = _result(path)
    try:
        clients = [_client(row) for row in read_clusters(path)["clients"]]
        records = read_records(path)
        _check(info, records, clients)
        evidence = _evidence(path / "evidence.safetensors", len(clients))
        recipe = read_text(path / "recipe.toml")
        environment = read_json(path / "env.json") if there(path / "env.json") else {}
        gram_names, gram = ([], None) if evidence.proximity is not None else _gram(path, clients)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, SafetensorError) as error:
        if isinstance(error, UmbelError):
            raise
        what = f"{type(error).__name__} {error}" if isinstance(error, KeyError) else str(error)
        raise UmbelError(f"The run in {path} must be as umbel wrote it. It was changed or cut short: {what}.") from None
    return Run(path, info, records, clients, evidence, recipe, environment, gram, gram_names)


def _result(path: Path) -> dict[str, Any]:
    """result.json of a folder that is ours, finished and of this version."""
    if not path.is_dir():
        what = "It is a file" if path.exists() else "There is none"
        raise UmbelError(f"A report is made of run folders. {what} at {path}.")
    if not (path / "recipe.toml").is_file():
        raise UmbelError(f"The folder {path} must be a run of umbel, or hold some. There is no recipe.toml in it.")
    if not (path / "result.json").is_file():
        raise UmbelError(f"The run in {path} is not finished. Go on with: umbel run --resume --out {path}")
    info = read_json(path / "result.json")
    schema = info.get("schema") if isinstance(info, dict) else None
    if schema not in READ:
        raise UmbelError(
            f"The run in {path} must have schema {SCHEMA}, which this version of umbel reads. Got {schema!r}: run its"
            " recipe.toml again."
        )
    now: dict[str, Any] = read_result(path)
    return now


def _client(row: dict[str, Any]) -> ClientResult:
    truth, holds = row["truth"], row.get("holds")
    return ClientResult(
        str(row["name"]), int(row["cluster"]), None if truth is None else int(truth),
        {start: float(row["score"][start]) for start in STARTS if start in row["score"]},
        None if holds is None else {int(label): int(rows) for label, rows in holds.items()},
    )


def _check(info: dict[str, Any], records: list[dict[str, Any]], clients: list[ClientResult]) -> None:
    """Raise where something that the page relies on is missing."""
    Metric(**info["metric"])
    if info["score"][info["headline"]]:
        float(info["score"][info["headline"]]["value"])
    for name in ("method", "params", "data", "scenario", "seed", "partition_hash", "versions", "lost"):
        info[name]
    for name in ("count", "ari", "unplaced"):
        info["clusters"][name]
    float(info["bytes"]["down"] + info["bytes"]["up"] + info["seconds"]["total"])
    if len(clients) != info["clients"] or not clients:
        raise ValueError(f"clusters.json has {len(clients)} clients, result.json {info['clients']}")
    total = info["rounds"]["pretrain"] + info["rounds"]["after"]
    if [record["round"] for record in records] != list(range(-1, total)):
        raise ValueError(f"rounds.jsonl must hold the rounds -1 to {total - 1}, and does not")
    for record in records:
        record["bytes"].items()
        record["seconds"]["wall"]


def _evidence(path: Path, clients: int) -> Evidence:
    """The small parts of the evidence; signatures and anchor models stay on the disk."""
    if not there(path):
        return Evidence(np.arange(clients))
    refuse_irregular(path)
    with safe_open(path, "numpy") as file:
        names = set(file.keys())

        def array(name: str) -> NDArray[Any] | None:
            return np.asarray(file.get_tensor(name)) if name in names else None

        proximity, links, cut = array("proximity"), array("linkage"), array("cut")
        hopkins, variation, landmarks = array("hopkins"), array("variation"), array("landmarks")
        curve = array("curve") if array("curve") is not None else array("sweep")  # as version 0.1.0 calls it
        trajectory, exemplars, who = array("signature/trajectory"), array("exemplars"), array("who")
    who = np.arange(clients) if who is None else who
    p = 0 if proximity is None else len(proximity)
    if p > len(who) or (links is not None and links.shape != (max(0, p - 1), 4)) or (who >= clients).any():
        raise ValueError("the parts of evidence.safetensors do not fit each other")
    return Evidence(
        who.astype(np.int64),
        None if proximity is None or p < 2 else proximity.astype(np.float64),
        None if links is None or not len(links) else links.astype(np.float64),
        None if cut is None else float(cut),
        None if curve is None or len(curve) < 2 else curve.astype(np.float64),
        None if trajectory is None else trajectory.astype(np.float64),
        None if exemplars is None else exemplars.astype(np.int64),
        None if hopkins is None else float(hopkins),
        None if variation is None else (float(variation[0]), float(variation[1])),
        None if landmarks is None else int(landmarks),
    )


def _gram(path: Path, clients: list[ClientResult]) -> tuple[list[str], Floats | None]:
    """Inner products of clients' last local models, read layer by layer: all that a map of them needs."""
    file = path / "memory.safetensors"
    if not there(file):
        return [], None
    refuse_irregular(file)
    with safe_open(file, "numpy") as memory:
        keys = list(memory.keys())
        first = next((key.split("/last/")[0] for key in keys if "/last/" in key), None)
        layers = [key.split("/last/")[1] for key in keys if key.startswith(f"{first}/last/")]
        names = [client.name for client in clients if all(f"{client.name}/last/{layer}" in keys for layer in layers)]
        if not layers or len(names) < 3:
            return [], None
        total = np.zeros((len(names), len(names)))
        for layer in layers:
            rows = np.stack([np.asarray(memory.get_tensor(f"{name}/last/{layer}")).ravel() for name in names])
            rows = rows.astype(np.float64) - rows.mean(0, dtype=np.float64)
            total += rows @ rows.T
    return (names, total) if np.isfinite(total).all() else ([], None)
