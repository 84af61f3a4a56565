"""Run folders as `umbel run` leaves them, made of numbers out of the air: a report needs no training to be tested."""

import json
import tomllib
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from umbel.clustering.linkage import cut, linkage
from umbel.files import digest_of, read_json
from umbel.nets.objective import ACCURACY, Classify, Objective
from umbel.runs import evaluate
from umbel.runs.result import versions
from umbel.runs.schema import SCHEMA
from umbel.runs.sealed import sealed

CLASSIFY = Classify(10)


def a_line(round: int) -> dict[str, Any]:
    """What rounds.jsonl says at least of a round."""
    return {"round": round, "metric": ACCURACY._asdict(), "clusters": 1, "unplaced": 0, "trained": [], "bytes": {},
            "seconds": {"wall": 0.1}, "lost": {}}


def fake_run(path: Path, method: str = "pacfl", *, clients: int = 12, rounds: int = 5, groups: int = 3, seed: int = 0,
             names: list[str] | None = None, known: bool = True, gain: float = 0.0,
             objective: Objective = CLASSIFY, **changed: Any) -> Path:
    """A finished run: `groups` groups of clients around centres on a line, described by their distances and cut there.

    `known=False` is a scenario without true groups; method `fedavg` has one cluster and no evidence; `cflgt` has
    trajectories and no linkage. `objective` says what it is judged by; scores go from 0.5 to 0.9, plus `gain`.
    """
    rng = np.random.default_rng(seed)
    path.mkdir(parents=True)
    names = names or [f"c{i:03d}" for i in range(clients)]
    truth = (np.arange(clients) % groups).tolist()
    points = torch.tensor(np.array(truth)[:, None] * 4.0 + rng.normal(size=(clients, 1)))
    distance = torch.cdist(points, points)
    links = linkage(distance)
    labels = [0] * clients if method == "fedavg" else cut(links, 2.0).tolist()
    if method != "fedavg":
        evidence = {
            "who": torch.arange(clients), "proximity": distance, "cut": torch.tensor(2.0, dtype=torch.float64),
            "curve": torch.tensor([[9.0, 1, 0.1, 0], [2.0, max(labels) + 1, 0.8, 1], [0.1, clients, 0.82, 0]]).double(),
        }
        if method == "cflgt":
            evidence |= {"signature/trajectory": torch.tensor(rng.random((clients, 2, 10))),
                         "exemplars": torch.arange(2), "hopkins": torch.tensor(0.9),
                         "variation": torch.tensor([1.0, 2.0])}
            evidence["curve"] = torch.zeros(0, 4, dtype=torch.float64)
        else:
            evidence["linkage"] = links
        save_file(evidence, path / "evidence.safetensors")
    save_file({f"{name}/last/fc.weight": torch.tensor(rng.normal(size=(3, 2))) for name in names},
              path / "memory.safetensors")
    scores = (np.linspace(0.5, 0.9, clients) + gain).tolist()
    clients_of: dict[str, evaluate.ClientScore] = {name: {"score": score, "loss": 1.0, "rows": 10}
                                                   for name, score in zip(names, scores, strict=True)}
    together = {objective.metric.name.lower(): sum(scores) / clients}
    summary = evaluate.summary({"clients": clients_of, "pooled": together}, objective)
    agreement = evaluate.agreement(labels, truth) if known else dict.fromkeys(evaluate.agreement([0], [0]))
    final, metric = {**summary, "rounds_averaged": 1}, objective.metric._asdict()
    info = {
        "schema": SCHEMA, "status": "finished", "method": method, "params": {"rank": 3, "cut": "value", "lr": 0.01},
        "data": "digits", "data_part": "", "scenario": "rotation-4", "scenario_facts": None,
        "partition_hash": f"{seed:016x}",
        "test_mode": "holdout", "model": {"name": "mlp", "parameters": 9, "head": "fc"}, "seed": seed,
        "clients": clients, "rounds": {"pretrain": 0, "after": rounds}, "fraction": 1.0, "engine": "simulator",
        "device": "cpu", "precision": "float32", "headline": "cluster_model",
        "clusters": {"count": max(labels) + 1, "labels": dict(zip(names, labels, strict=True)),
                     "truth": dict(zip(names, truth, strict=True)) if known else None, **agreement, "unplaced": 0,
                     "why": {}},
        "metric": metric, "score": {"cluster_model": final, "fine_tuned": final, "last_local": None, "missing": {}},
        "bytes": {"down": 4_000_000, "up": 4_000_000, "by_kind": {}, "evaluate": 9}, "lost": {},
        "seconds": {"total": 1.5, "per_round": 0.3, "evaluate": 0.1, "signature": 0.0, "clustering": 0.0},
        "versions": versions(),
    } | changed
    page = {"train": {"down": {"model": 400_000}, "up": {"model": 400_000}}, "evaluate": {"down": {"model": 7}}}
    line = {"metric": metric, "clusters": max(labels) + 1}
    records: list[dict[str, Any]] = [{**a_line(-1), **line, "bytes": {"signature": {"up": {"basis": 100_000}}}}]
    records += [{**a_line(r), **line, "bytes": page,
                 "score": {**summary, "value": summary["value"] * (r + 1) / rounds}} for r in range(rounds)]
    held = [{str(label): int(rows) for label, rows in enumerate(rng.integers(0, 9, 10)) if rows} for _ in names]
    people = [{"name": name, "cluster": label, "truth": truth[i] if known else None, "holds": held[i],
               "score": {"cluster_model": scores[i], "fine_tuned": scores[i]}}
              for i, (name, label) in enumerate(zip(names, labels, strict=True))]
    (path / "result.json").write_text(json.dumps(info))
    members = {str(k): [name for name, label in zip(names, labels, strict=True) if label == k] for k in set(labels)}
    (path / "clusters.json").write_text(json.dumps({"members": members, "clients": people}))
    (path / "rounds.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (path / "recipe.toml").write_text(f'method = "{method}"\n')
    (path / "env.json").write_text(json.dumps({"versions": versions(), "device": "a machine"}))
    return path


def unsealed(folder: Path) -> None:
    """Write checkpoint.json back into what umbel 0.1 wrote: nothing binds the folder."""
    now = json.loads((folder / "checkpoint.json").read_text())
    tensors = {name: digest for name, digest in now["files"].items() if name.endswith(".safetensors")}
    old = {"round": now["round"], "files": tensors, "memory_rounds": now["memory_rounds"]}
    (folder / "checkpoint.json").write_text(json.dumps(old))


def resealed(folder: Path, **changed: Any) -> None:
    """Seal a folder anew as it is now, as a forger can; `changed` are other values of checkpoint.json."""
    now = json.loads((folder / "checkpoint.json").read_text())
    digests = {name: digest_of((folder / name).read_bytes()) for name in now["files"] if (folder / name).exists()}
    lines = (folder / "rounds.jsonl").read_bytes()
    about = {"count": lines.count(b"\n"), "bytes": len(lines), "digest": digest_of(lines)}
    recipe = tomllib.loads((folder / "recipe.toml").read_text())
    (folder / "checkpoint.json").write_text(json.dumps(sealed(
        {**now, "files": digests, "lines": about, "recipe": recipe, **changed})))


def outcome(folder: Path) -> dict[str, Any]:
    """All that a run leaves, without times."""
    result = read_json(folder / "result.json")
    result.pop("seconds")
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    for line in lines:
        line.pop("seconds")
    hashes: dict[str, Any] = {path.name: sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()
              if path.name not in ("result.json", "rounds.jsonl", "env.json", "partition.npz", "checkpoint.json")}
    checkpoint = read_json(folder / "checkpoint.json")
    timed = ("lines", "seal")  # digests of what holds seconds
    hashes["checkpoint.json"] = {name: value for name, value in checkpoint.items() if name not in timed}
    hashes["checkpoint.json"]["files"] = {name: digest for name, digest in checkpoint["files"].items()
                                          if name != "result.json"}
    return {"result": result, "rounds": lines, "files": hashes, "names": sorted(path.name for path in folder.iterdir())}
