"""Placing many clients: newcomers in bulk against one after the other, landmarks against the matrix of all.

    python benchmarks/grouping.py [--newcomers 2000] [--clients 10000] [--landmarks 500]

1. As many newcomers as clients, vectors of 64 numbers in ten groups: the rule in bulk, and the way it was once done:
   one newcomer after the other, its distances and the mean of each cluster anew, its row put below the others.
2. Landmarks and the matrix of all: time, and the peak of resident memory above what the process holds once the vectors
   are there. Each in a process of its own.

Ratios travel from machine to machine; seconds do not.
"""

import json
import multiprocessing
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

from umbel.clustering.cuts import CUTS
from umbel.clustering.grouping import Grouping, Known, dendrogram, landmarks, settle
from umbel.clustering.proximity import euclidean, symmetric
from umbel.tree import Tree

RESULTS = Path(__file__).parent / "results"
NUMBERS, GROUPS = 64, 10


def vectors(clients: int) -> Tensor:
    """Points around ten centres, client after client of another group."""
    draw = torch.Generator().manual_seed(0)
    centres = 5 * torch.randn(GROUPS, NUMBERS, generator=draw)
    return centres[torch.arange(clients) % GROUPS] + torch.randn(clients, NUMBERS, generator=draw)


def apart(a: Tree, b: Tree, evidence: Tree | None = None) -> Tensor:
    """L2."""
    return euclidean(a["x"], b["x"])


def one_after_the_other(known: Tensor, labels: Tensor, newcomers: Tensor, clusters: int, cut: float) -> Tensor:
    """The old way: everything anew for every newcomer."""
    placed = []
    for point in newcomers[:, None]:
        away = euclidean(point, known)[0]
        means = torch.full((clusters,), torch.inf, dtype=torch.float64)
        for label in range(clusters):
            if bool((labels == label).any()):
                means[label] = away[labels == label].mean()
        label = int(means.argmin())
        if float(means[label]) > cut:
            label, clusters = clusters, clusters + 1
        placed.append(label)
        known, labels = torch.cat([known, point]), torch.cat([labels, torch.tensor([label])])
    return torch.tensor(placed)


def in_bulk(known: Tensor, labels: Tensor, newcomers: Tensor, clusters: int, cut: float) -> Tensor:
    """The rule as it is."""
    nobody = torch.zeros(len(known), dtype=torch.bool)
    return settle(Known({"x": known}, labels, nobody), {"x": newcomers}, apart, clusters, cut).labels


def newcomers(count: int) -> dict[str, Any]:
    """As many newcomers as clients; a tenth of them of a group that nobody has met, and founds."""
    points, cut = vectors(2 * count), 25.0
    points[count::GROUPS] += 50.0
    given = (points[:count], torch.arange(count) % GROUPS, points[count:], GROUPS, cut)
    new, old = timed(in_bulk, 5, *given), timed(one_after_the_other, 1, *given)
    return {"newcomers": count, "seconds": new[0], "old_seconds": old[0], "times_faster": old[0] / new[0],
            "same_labels": torch.equal(new[1], old[1]), "clusters": int(new[1].max()) + 1}


def timed(function: Callable[..., Tensor], times: int, *given: Any) -> tuple[float, Tensor]:
    """The median of some runs, and the answer."""
    spans = []
    for _ in range(times):
        started = time.perf_counter()
        answer = function(*given)
        spans.append(time.perf_counter() - started)
    return statistics.median(spans), answer


def grouped(clients: int, sample: int, answer: Any) -> None:
    """Groups of many clients, by all distances or by landmarks."""
    rows = {"x": vectors(clients)}
    drawn = torch.randperm(clients, generator=torch.Generator().manual_seed(1))
    before, started = resident(forget=True), time.perf_counter()

    def group(some: Tree) -> Grouping:
        return dendrogram(symmetric(apart(some, some)), "average", CUTS["silhouette"])

    made = landmarks(rows, drawn[:sample], drawn[sample:], group, apart,
                     lambda evidence: torch.ones(len(evidence["x"]), dtype=torch.bool))
    answer.send({"clients": clients, "landmarks": sample, "seconds": time.perf_counter() - started,
                 "peak_above_inputs_mb": resident() - before, "clusters": int(made.labels.max()) + 1,
                 "labels": made.labels.tolist()})


def resident(forget: bool = False) -> float:
    """The peak so far, MB; by `forget` it begins anew. Of Linux: a child inherits the peak that getrusage tells."""
    if forget:
        Path("/proc/self/clear_refs").write_text("5")
    (line,) = [each for each in Path("/proc/self/status").read_text().splitlines() if each.startswith("VmHWM")]
    return int(line.split()[1]) / 1024


def alone(clients: int, sample: int) -> dict[str, Any]:
    """`grouped` in a process of its own, so that its peak is its own."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=grouped, args=(clients, sample, there))
    process.start()
    found: dict[str, Any] = here.recv()
    process.join()
    return found


def main(
    count: Annotated[int, typer.Option("--newcomers", help="Newcomers, and clients they meet; 0: none.")] = 2000,
    clients: Annotated[int, typer.Option(help="Clients to be grouped.")] = 10_000,
    sample: Annotated[int, typer.Option("--landmarks", help="Landmarks among them.")] = 500,
) -> None:
    """Print and write JSON."""
    from umbel.runs.evaluate import agreement

    found: dict[str, Any] = {"threads": torch.get_num_threads()}
    if count:
        found["newcomers"] = newcomers(count)
        print(json.dumps(found["newcomers"]), flush=True)
    few, whole = alone(clients, sample), alone(clients, clients)
    found["ari_to_the_whole"] = agreement(few.pop("labels"), whole.pop("labels"))["ari"]
    found |= {"landmarks": few, "whole": whole, "times_faster": whole["seconds"] / few["seconds"],
              "times_less_memory": whole["peak_above_inputs_mb"] / max(1, few["peak_above_inputs_mb"])}
    print(json.dumps({name: found[name] for name in found if name not in ("threads", "newcomers")}))
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "grouping.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
