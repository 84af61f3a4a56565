"""The proof that nothing moved: small runs of every method family, and what they must end in.

    python tests/unmoved.py record before.json      # on the code as it is
    python tests/unmoved.py check before.json       # on the changed code, on the same machine

Written down are a digest of every tensor in state.safetensors, the labels, the scores, and all bytes but those of phase
`evaluate`. Digests hold on one machine with one set of versions; `tests/runs/test_unmoved.py` keeps the rest.
"""

import contextlib
import io
import json
import sys
import tempfile
from hashlib import blake2b
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

COMMON = ["--data", "digits", "--rounds", "2", "--epochs", "2", "--seed", "3", "--device", "cpu"]
TURNED = ["--scenario", "rotation-4", "--clients", "8"]
RUNS: dict[str, list[str]] = {  # a name, and what `umbel run` is given beside COMMON
    "fedavg": ["fedavg", *TURNED, "--fraction", "0.5"],
    "fedavg-lenet5": ["fedavg", *TURNED, "--model", "lenet5"],
    "fedavg-loop": ["fedavg", *TURNED, "--engine", "loop", "--model", "lenet5"],
    "fedavg-workers": ["fedavg", "--scenario", "iid", "--clients", "4", "--model", "lenet5", "--workers", "2",
                       "--epochs", "8", "--batch", "5", "--lr", "0.001"],
    "fedprox": ["fedprox", *TURNED, "--set", "mu=0.1"],
    "fedavg-ft": ["fedavg-ft", *TURNED],
    "fednova": ["fednova", "--scenario", "dirichlet", "--clients", "8", "--set", "momentum=0.9"],
    "scaffold": ["scaffold", *TURNED],
    "perfedavg": ["perfedavg", *TURNED, "--set", "order=hessian-free"],
    "lg": ["lg", *TURNED],
    "solo": ["solo", *TURNED, "--average-last", "2"],
    "oracle": ["oracle", *TURNED, "--join", "3@1", "--shuffle"],
    "flag": ["flag", *TURNED, "--set", "cut=sweep", "--set", "validators=4"],
    "flag-gap-late": ["flag", *TURNED, "--set", "cut=gap", "--shuffle", "--join", "2@1"],
    "flag-lenet5": ["flag", *TURNED, "--set", "cut=sweep", "--model", "lenet5", "--set", "validators=4", "--set",
                    "validation_rounds=2", "--set", "rule=knee"],
    "pacfl": ["pacfl", *TURNED, "--set", "per_class=true", "--set", "angle=smallest", "--set", "cut=silhouette"],
    "pacfl-recluster": ["pacfl", *TURNED, "--set", "angle=mean", "--set", "cut=silhouette", "--set", "recluster=true",
                        "--shuffle", "--join", "2@1", "--leave", "1@1"],
    "fedclust": ["fedclust", *TURNED, "--model", "lenet5", "--set", "warmup=3", "--set", "cut=silhouette",
                 "--join", "2@1"],
    "cflgt": ["cflgt", *TURNED, "--set", "pretrain=2", "--set", "cut=gate", "--set", "gate=0", "--join", "2@3"],
    "kmeans": ["kmeans", *TURNED, "--set", "clusters=4", "--set", "pretrain=2", "--join", "1@3"],
    "ifca": ["ifca", *TURNED, "--set", "clusters=3", "--set", "first=expert"],
    "cfl": ["cfl", *TURNED, "--set", "cut=norms", "--set", "settled=10", "--set", "restless=0", "--set", "patience=0",
            "--fraction", "0.5"],
    "fedsoft": ["fedsoft", *TURNED, "--set", "clusters=3"],
    "flhc": ["flhc", *TURNED, "--set", "pretrain=2", "--set", "cut=count", "--set", "clusters=4"],
    "fedsem": ["fedsem", *TURNED, "--set", "clusters=3", "--fraction", "0.6"],
    "fedgroup": ["fedgroup", *TURNED, "--set", "clusters=2", "--set", "sample=3", "--set", "steps=20"],
    "resumed": ["flag", *TURNED, "--set", "cut=silhouette"],
}
MORE = {"resumed": "4"}  # rounds to which a finished run is prolonged, from its checkpoint


def umbel(*words: str) -> None:
    """The command line, in this process and without its words on the screen."""
    from umbel.cli import main

    said, before = io.StringIO(), sys.argv
    sys.argv = ["umbel", *words]
    try:
        with contextlib.redirect_stdout(said):
            main()
    except SystemExit as end:
        if end.code:
            raise RuntimeError(f"umbel {' '.join(words)} ended with {end.code}:\n{said.getvalue()}") from end
    finally:
        sys.argv = before


def play(name: str, folder: Path) -> dict[str, Any]:
    """Do one run in a new folder, and say what it ended in."""
    umbel("run", *COMMON, *RUNS[name], "--out", str(folder), "--quiet")
    if name in MORE:
        umbel("run", "--resume", "--rounds", MORE[name], "--out", str(folder), "--quiet")
    return ended_in(folder)


def ended_in(folder: Path) -> dict[str, Any]:
    """Digests of all tensors, labels, scores and bytes of a finished run."""
    info = json.loads((folder / "result.json").read_text())
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    tensors = load_file(folder / "state.safetensors")
    return {
        "tensors": {name: blake2b(leaf.numpy().tobytes() + str((leaf.dtype, tuple(leaf.shape))).encode(),
                                  digest_size=8).hexdigest() for name, leaf in sorted(tensors.items())},
        "labels": info["clusters"]["labels"],
        "scores": {kind: score and score["mean"] for kind, score in info["score"].items() if kind != "missing"},
        "curve": [line["score"]["mean"] for line in lines if line.get("score")],
        "bytes": [{phase: moved for phase, moved in line["bytes"].items() if phase != "evaluate"} for line in lines],
    }


def main() -> None:
    """Record, or check against what was recorded."""
    what, file = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        now = {name: play(name, Path(folder) / name) for name in RUNS}
    if what == "record":
        Path(file).write_text(json.dumps(now, indent=1) + "\n")
        return
    before = json.loads(Path(file).read_text())
    moved = [f"{name}: {part}" for name, run in before.items() for part in run if now[name][part] != run[part]]
    print("\n".join(moved) or f"Nothing moved in {len(before)} runs.")
    sys.exit(bool(moved))


if __name__ == "__main__":
    main()
