"""Do the methods find the groups that their papers find? Suites of `umbel run`, several at once, and a table.

    python benchmarks/clusters.py SUITE [--jobs 2] [--device cpu] [--out runs/SUITE]

A run that is finished already is kept, so a suite can be stopped and gone on with. The summary (summary.json) holds
what LOG.md prints: clusters, agreement with the truth, accuracy, FLAG's curve, newcomers that joined the right cluster.
"""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from safetensors.torch import load_file

COMPARATIVE = "--model mlp --batch 32 --lr 0.01 --epochs 10 --set momentum=0 --fine-tune 0 --eval-every 10"
GROUPS = {"rotation-4": 4, "swap-6": 6, "feature-3": 3, "label-4": 4, "quantity-4": 4}
FORMED = "--rounds 1 --fine-tune 0"  # clusters are all that is asked for
CFLGT = "--model mlp --batch 32 --lr 0.001 --epochs 5 --set momentum=0.9"


def comparative() -> Iterator[str]:
    """The Comparative Evaluation: server-side k-means, client-side IFCA, FL."""
    for data in ("mnist", "fashion-mnist"):
        for scenario, k in GROUPS.items():
            yield f"kmeans --data {data} --scenario {scenario} --set clusters={k} --rounds 20 --seed 42 {COMPARATIVE}"
        chosen = "--set clusters=4 --set first=random --rounds 20"
        yield f"ifca --data {data} --scenario label-4 {chosen} --seed 42 {COMPARATIVE}"
        for seed in (42, 43, 44):
            base = f"--data {data} --scenario rotation-4 --seed {seed} {COMPARATIVE}"
            yield f"fedavg --rounds 50 {base}"
            yield f"ifca {chosen} {base}"
            yield f"ifca --set clusters=4 --set first=expert --set expert=0.5 --rounds 20 {base}"
            if seed > 42:
                yield f"kmeans --set clusters=4 --rounds 20 {base}"


def flag() -> Iterator[str]:
    """FLAG on its own partition, whole Fashion-MNIST."""
    for alpha in (1, 0.25):
        for seed in (0, 1, 2):
            yield f"flag --data fashion-mnist --scenario flag:labels=0.2,alpha={alpha} --seed {seed} {FORMED}"


def flag_cifar() -> Iterator[str]:
    """FLAG on its own partition, CIFAR-10 (or the part of it that is there)."""
    for alpha in (1, 0.25):
        for seed in (0, 1, 2):
            yield f"flag --data cifar10 --scenario flag:labels=0.2,alpha={alpha} --seed {seed} {FORMED}"


def iid() -> Iterator[str]:
    """Where there are no groups, every automatic cut must answer one cluster."""
    for method in ("pacfl", "flag", "fedclust"):
        yield f"{method} --data fashion-mnist --scenario iid --clients 100 {FORMED}"
    yield f"cflgt --data fashion-mnist --scenario iid --clients 100 {CFLGT} {FORMED}"


def oneshot() -> Iterator[str]:
    """The other one-shot methods where their papers look."""
    for seed in (0, 1, 2):
        yield f"cflgt --data fashion-mnist --scenario cflgt-1 --seed {seed} {CFLGT} {FORMED}"
        yield f"fedclust --data fashion-mnist --scenario flag-20 --seed {seed} {FORMED}"
        yield f"pacfl --data fashion-mnist --scenario flag-20 --seed {seed} {FORMED}"


def mix() -> Iterator[str]:
    """PACFL on its four data sets."""
    for seed in (0, 1, 2):
        yield f"pacfl --scenario mix-4 --seed {seed} {FORMED}"


def label_skew() -> Iterator[str]:
    """IFCA on the Comparative Evaluation's label skew, by how the first round is assigned."""
    for data in ("mnist", "fashion-mnist"):
        for first in ("random", "loss"):
            for seed in (42, 43, 44):
                yield (f"ifca --data {data} --scenario label-4 --set clusters=4 --set first={first} --rounds 20"
                       f" --seed {seed} {COMPARATIVE}")


def newcomers() -> Iterator[str]:
    """80 clients train, 20 from all groups join at round 10 and fine-tune for 5 epochs."""
    late = "--shuffle --join 20@10 --rounds 11 --fraction 0.2 --epochs 2 --fine-tune 5 --eval-every 11"
    for seed in (0, 1, 2):
        for method in ("flag", "fedclust", "fedclust --set metric=cosine", "pacfl"):
            yield f"{method} --data fashion-mnist --scenario flag-20 {late} --seed {seed}"
        yield f"cflgt --data fashion-mnist --scenario cflgt-1 {CFLGT} {late.replace('--epochs 2', '')} --seed {seed}"


def newcomers_mix() -> Iterator[str]:
    """The same for PACFL on its four data sets; and a data set that nobody had before."""
    late = "--rounds 3 --fraction 0.2 --epochs 1 --fine-tune 5 --eval-every 3"
    for seed in (0, 1, 2):
        yield f"pacfl --scenario mix-4 --shuffle --join 20@2 {late} --seed {seed}"
    yield f"pacfl --scenario mix-4 --join 14@2 {late}"


def ablation() -> Iterator[str]:
    """FLAG's beta where the number of clusters is given: how well do data, gradients, and both tell groups apart?"""
    cases = {"flag:labels=0.2,alpha=0.25": 10, "swap-6:per_label=4": 6, "swap-6:per_label=20": 6,
             "rotation-4:per_label=4": 4, "feature-3:per_label=20": 3, "label-4": 4}
    for scenario, k in cases.items():
        for beta in (0, 0.5, 1):
            for seed in (0, 1, 2):
                yield (f"flag --data fashion-mnist --scenario {scenario} --set beta={beta} --set cut=count"
                       f" --set clusters={k} --seed {seed} {FORMED}")


SUITES = {
    "ablation": ablation,
    "mix": mix, "label-skew": label_skew, "newcomers": newcomers, "newcomers-mix": newcomers_mix,
    "comparative": comparative, "flag": flag, "flag-cifar": flag_cifar, "iid": iid, "oneshot": oneshot,
}


def play(line: str, folder: Path, device: str) -> str:
    if (folder / "result.json").exists():
        return ""
    mode = ["--resume"] if folder.exists() else []
    command = f"-m umbel.cli run {line} --device {device} -q --out".split()
    done = subprocess.run([sys.executable, *command, str(folder), *mode], capture_output=True, text=True, check=False)
    return f"{line}: {done.stderr.strip()}" if done.returncode else ""


def joined_rightly(labels: dict[str, int], truth: dict[str, int], late: int) -> int:
    """How many of the last clients are in the cluster that holds most of their true group's early members."""
    names = list(labels)
    homes = {group: Counter(labels[n] for n in names[:-late] if truth[n] == group) for group in set(truth.values())}
    return sum(bool(homes[truth[n]]) and labels[n] == homes[truth[n]].most_common(1)[0][0] for n in names[-late:])


def summary(line: str, folder: Path) -> dict[str, object]:
    info = json.loads((folder / "result.json").read_text())
    evidence = folder / "evidence.safetensors"
    kept = load_file(evidence) if evidence.exists() else {}
    names = ("curve", "linkage", "hopkins", "variation", "cut")
    lists = {name: kept[name].tolist() for name in names if name in kept}
    rounds = [json.loads(text) for text in (folder / "rounds.jsonl").read_text().splitlines()]
    curve = {each["round"] + 1: each["score"]["value"] for each in rounds if each.get("score")}
    if "--join" in line:
        late = int(line.split("--join ")[1].split("@")[0])
        lists["right"] = joined_rightly(info["clusters"]["labels"], info["clusters"]["truth"], late)
        people = json.loads((folder / "clusters.json").read_text())["clients"][-late:]
        lists["tuned"] = sum(each["score"]["fine_tuned"] for each in people) / late
    return {"command": line, "clusters": info["clusters"]["count"], "ari": info["clusters"]["ari"],
            "accuracy": info["score"]["cluster_model"], "curve": curve, "data": info["data"],
            "seconds": info["seconds"]["total"], **lists}


def main(
    suite: Annotated[str, typer.Argument(help=", ".join(SUITES))],
    jobs: Annotated[int, typer.Option(help="Runs at a time.")] = 2,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    out: Annotated[Path | None, typer.Option(help="Folder of the runs.")] = None,
    only: Annotated[str, typer.Option(help="Only commands that contain this text.")] = "",
) -> None:
    """Run a suite and print its table."""
    lines = list(SUITES[suite]())
    folder = out or Path("runs") / suite
    folders = [folder / f"{i:02d}" for i, line in enumerate(lines) if only in line]
    lines = [line for line in lines if only in line]
    with ThreadPoolExecutor(jobs) as pool:
        for complaint in filter(None, pool.map(lambda job: play(*job, device), zip(lines, folders, strict=True))):
            print(complaint, flush=True)
    found = [summary(line, path) for line, path in zip(lines, folders, strict=True) if (path / "result.json").exists()]
    (folder / "summary.json").write_text(json.dumps(found))
    table = Table(box=None)
    for column in ("command", "k", "ARI", "accuracy", "late, right", "seconds"):
        table.add_column(column, no_wrap=column != "command")
    for line in found:
        score = line["accuracy"]
        table.add_row(line["command"].split(" --model")[0], str(line["clusters"]),
                      "–" if line["ari"] is None else f"{line['ari']:.3f}",
                      f"{100 * score['mean']:.2f} ± {100 * score['std']:.2f}",
                      f"{line['right']}, {100 * line['tuned']:.1f} %" if "right" in line else "",
                      f"{line['seconds']:.0f}")
    Console(width=150).print(table)


if __name__ == "__main__":
    typer.run(main)
