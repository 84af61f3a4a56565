"""What came of a run: one schema for all methods, computed from the round records and the last state alone."""

import os
import platform
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from umbel.federation import ledger
from umbel.runs import evaluate
from umbel.algorithms import ALGORITHMS
from umbel.algorithms.base import Algorithm, State
from umbel.runs.checkpoint import RunFolder, write_json
from umbel.data.plans import save_plan
from umbel.federation.door import Federation
from umbel.runs.recipe import settings_of, to_toml
from umbel.tree import Tree

SCHEMA = 1


@dataclass(frozen=True)
class Result:
    """A finished run in memory. `info` is what result.json holds."""

    info: dict[str, Any]
    state: State
    records: list[dict[str, Any]]
    fed: Federation
    choices: Mapping[str, Any]  # rounds, fraction and how it was tested

    @classmethod
    def of(cls, algorithm: Algorithm, fed: Federation, state: State, records: list[dict[str, Any]],
           choices: Mapping[str, Any]) -> "Result":
        """Put the result together."""
        pages = ledger.merge(record["bytes"] for record in records)
        info = {
            "schema": SCHEMA,
            "status": "finished",
            "method": method_name(algorithm),
            "params": settings_of(algorithm),
            "data": fed.facts.get("data"),
            "data_part": fed.facts.get("data_part"),
            "scenario": fed.setup.get("scenario"),
            "scenario_facts": fed.facts.get("scenario"),
            "partition_hash": fed.facts.get("partition_hash"),
            "test_mode": fed.facts.get("test_mode"),
            "model": {"name": fed.net.name, "parameters": fed.net.parameters, "head": fed.net.head},
            "seed": fed.seed,
            "clients": len(fed.names),
            "rounds": {"pretrain": algorithm.pretrain, "after": choices["rounds"]},
            "fraction": choices["fraction"],
            "engine": fed.setup.get("engine"),
            "device": fed.device.type,
            "precision": fed.net.precision,
            "workers": fed.workers,
            "headline": algorithm.headline,
            "clusters": _clusters(fed, state),
            "accuracy": _accuracy(algorithm, fed, state, records, choices),
            "bytes": ledger.summary(pages),
            "seconds": _seconds(records),
            "lost": dict(Counter(reason for record in records for reason in record["lost"].values())),
            "versions": versions(),
        }
        return cls(info, state, records, fed, choices)

    @property
    def labels(self) -> Tensor:
        """(n,) the cluster of each client; -1 = not placed."""
        return self.state.labels

    @property
    def models(self) -> Tree:
        """The clusters' models, side by side."""
        return self.state.models

    @property
    def accuracy(self) -> float:
        """The accuracy that the method is judged by: mean over clients, in [0, 1]."""
        return float(self.info["accuracy"][self.info["headline"]]["mean"])

    @property
    def curve(self) -> dict[int, float]:
        """Mean accuracy over clients by number of rounds done."""
        return {each["round"] + 1: each["accuracy"]["mean"] for each in self.records if each.get("accuracy")}

    def clusters_table(self) -> dict[str, Any]:
        """What clusters.json holds: the members of each cluster, and a line for each client."""
        truth, counts = self.fed.facts.get("truth"), self.fed.facts.get("label_counts")
        final = self.records[-1]["final"]
        labels = self.labels.tolist()

        def reached(name: str) -> dict[str, float]:
            return {kind: scores[name]["accuracy"] for kind, scores in final.items() if scores and name in scores}

        def holds(i: int) -> dict[str, int] | None:  # only a simulation knows
            return {str(label): rows for label, rows in enumerate(counts[i]) if rows} if counts else None

        clients = [
            {"name": name, "cluster": label, "truth": truth[i] if truth else None, "accuracy": reached(name),
             "holds": holds(i)}
            for i, (name, label) in enumerate(zip(self.fed.names, labels, strict=True))
        ]
        members = {str(k): [c["name"] for c in clients if c["cluster"] == k] for k in sorted(set(labels))}
        return {"members": members, "clients": clients}

    def save(self, folder: str | Path) -> Path:
        """Keep the run in a new folder, as `umbel run` would have."""
        path = Path(folder)
        recipe = {"method": self.info["method"], **self.fed.setup, **self.choices, "settings": self.info["params"]}
        run = RunFolder.create(path, to_toml(recipe))
        write_json(path / "env.json", environment(self.fed))
        if self.fed.plan is not None:
            save_plan(path / "partition.npz", self.fed.plan)
        for record in self.records:
            run.write_line(record)
        run.commit(self.records[-1]["round"], self.state, *self.fed.memory(), None)
        run.finish(self.info, self.clusters_table())
        run.close()
        return path


def method_name(algorithm: Algorithm) -> str:
    """The name that a person types, or the class's for a method that is not registered."""
    return ALGORITHMS.name_of(type(algorithm)) or type(algorithm).__name__


def _clusters(fed: Federation, state: State) -> dict[str, Any]:
    labels, truth = state.labels.tolist(), fed.facts.get("truth")
    placed = [i for i, label in enumerate(labels) if label >= 0]
    agreement = dict.fromkeys(("ari", "ami", "homogeneity", "completeness", "v_measure"), None)
    if truth:
        agreement |= evaluate.agreement([labels[i] for i in placed], [truth[i] for i in placed])
    return {
        "count": len({labels[i] for i in placed}), "labels": dict(zip(fed.names, labels, strict=True)),
        "truth": dict(zip(fed.names, truth, strict=True)) if truth else None, **agreement,
        "unplaced": len(labels) - len(placed), "why": _why(state),
    }


def _why(state: State) -> dict[str, Any]:
    """What the method says of its own choice, as far as it fits a line; the whole evidence is in its file."""
    names = [name for name in ("cut", "hopkins", "variation") if name in state.evidence]
    found: dict[str, Any] = {name: state.evidence[name].tolist() for name in names}
    curve = state.evidence.get("sweep")
    if curve is not None and bool((curve[:, 3] == 1).any()):
        found["score"] = float(curve[curve[:, 3] == 1][0, 2])
        found["tried"] = len(curve)
    return found


def _accuracy(algorithm: Algorithm, fed: Federation, state: State, records: list[dict[str, Any]],
              choices: Mapping[str, Any]) -> dict[str, Any]:
    """The three accuracies, None where one does not exist, with the reason."""
    final = records[-1]["final"]
    found = {kind: evaluate.summary(scores) | {"rounds_averaged": 1} if scores else None
             for kind, scores in final.items()}
    window = [record["accuracy"] for record in records[-choices["average_last"]:] if record.get("accuracy")]
    if found["cluster_model"] and len(window) > 1:
        means = {name: sum(each[name] for each in window) / len(window)
                 for name in ("mean", "std", "worst_decile", "weighted")}
        found["cluster_model"] |= means | {"rounds_averaged": len(window)}
    if found["last_local"]:
        trained = {i for record in records for i in record["trained"]}
        placed = {i for i, label in enumerate(state.labels.tolist()) if label >= 0}
        found["last_local"]["never_trained"] = len(placed - trained)
    reasons = {
        "cluster_model": "the server's models do not classify by themselves in this method",
        "fine_tuned": "fine-tuning was left out (fine_tune = 0)",
        "last_local": "clients keep no local model above 256 MiB in all",
    }
    nobody = "no client that could be asked has test rows"
    missing = {kind: reasons[kind] if final[kind] is None else nobody for kind, scores in found.items() if not scores}
    return {**found, "missing": missing}


def _seconds(records: list[dict[str, Any]]) -> dict[str, float]:
    """Time by the clock: in all, per round without evaluation, for signatures, for clustering on the server."""
    def phase(name: str) -> float:
        return float(sum(record["seconds"].get(name, 0.0) for record in records))

    training = [record for record in records if record["round"] >= 0]
    busy = [record["seconds"]["wall"] - record["seconds"].get("evaluate", 0.0) for record in training]
    start = records[0]["seconds"]
    return {
        "total": phase("wall"), "per_round": sum(busy) / max(1, len(busy)), "evaluate": phase("evaluate"),
        "signature": phase("signature"),
        "clustering": start["wall"] - sum(spent for name, spent in start.items() if name != "wall"),
    }


def versions() -> dict[str, str]:
    """Of umbel and of what its numbers depend on."""
    found = {"python": platform.python_version()}
    for package in ("umbel", "torch", "numpy", "scipy", "scikit-learn"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def environment(fed: Federation) -> dict[str, Any]:
    """What a result may depend on beside its recipe."""
    device = torch.cuda.get_device_name(fed.device) if fed.device.type == "cuda" else platform.machine()
    return {
        "versions": versions(), "system": platform.system(), "device": device, "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }
