"""The server's side: proximity matrices and clusters, in time and in memory above the inputs.

    python benchmarks/server.py [--clients 1000] [--many 10000]

1. Smallest principal angles of all pairs of 1,000 clients (3 vectors of 3,072 numbers each), against
   `scipy.linalg.subspace_angles` over all pairs i < j, every one of them.
2. 10,000 such clients: proximity, dendrogram, and the cut by silhouette, by gap and by count; the peak of resident
   memory above what the process holds once the inputs are there. In a process of its own.
"""

import json
import multiprocessing
import resource
import statistics
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from scipy.linalg import subspace_angles

from umbel.clustering.cuts import by_count, by_gap, by_silhouette
from umbel.clustering.linkage import linkage
from umbel.clustering.proximity import smallest_angle, symmetric
from umbel.tree import Ragged

RESULTS = Path(__file__).parent / "results"
FEATURES, RANK, GROUPS = 3072, 3, 10


def bases(clients: int) -> Ragged:
    """Orthonormal vectors near those of ten groups."""
    draw = torch.Generator().manual_seed(0)
    centres = torch.randn(GROUPS, RANK, FEATURES, generator=draw)
    found = torch.empty(clients, RANK, FEATURES)
    for i in range(clients):
        near = centres[i % GROUPS] + 0.3 * torch.randn(RANK, FEATURES, generator=draw)
        found[i] = torch.linalg.qr(near.T)[0].T
    return Ragged(found, torch.full((clients,), RANK))


def against_scipy(clients: int) -> dict[str, Any]:
    """All pairs, both ways, and the largest difference in degrees."""
    given = bases(clients)
    spans = []
    for _ in range(5):
        started = time.perf_counter()
        ours = symmetric(smallest_angle(given, given))
        spans.append(time.perf_counter() - started)
    columns = [basis.double().numpy().T for basis in given.values]
    theirs = np.zeros((clients, clients))
    started = time.perf_counter()
    for i in range(clients):
        for j in range(i + 1, clients):
            theirs[i, j] = np.rad2deg(subspace_angles(columns[i], columns[j])[-1])
    took = time.perf_counter() - started
    apart = np.abs(np.triu(ours.numpy(), 1) - theirs).max()
    return {"clients": clients, "seconds": statistics.median(spans), "range": [min(spans), max(spans)],
            "scipy_seconds": took, "times_faster": took / statistics.median(spans), "largest_difference": float(apart)}


def resident() -> float:
    """The peak so far, MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def many(clients: int, answer: Any) -> None:
    """Distances and clusters of many clients, each step timed."""
    given = bases(clients)
    before, marks = resident(), [time.perf_counter()]
    distance = symmetric(smallest_angle(given, given))
    marks.append(time.perf_counter())
    links = linkage(distance)
    marks.append(time.perf_counter())
    found = {"silhouette": by_silhouette(links, distance), "gap": by_gap(links), "count": by_count(links, GROUPS)}
    marks.append(time.perf_counter())
    steps = dict(zip(("proximity", "linkage", "cuts"), np.diff(marks).tolist(), strict=True))
    answer.send({"clients": clients, "seconds": marks[-1] - marks[0], **steps, "inputs_mb": given.values.nbytes / 2**20,
                 "peak_above_inputs_mb": resident() - before,
                 "clusters": {name: int(choice.labels.max()) + 1 for name, choice in found.items()}})


def apart(clients: int) -> dict[str, Any]:
    """`many` in a process of its own, so that its peak is its own."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=many, args=(clients, there))
    process.start()
    found: dict[str, Any] = here.recv()
    process.join()
    return found


def main(
    clients: Annotated[int, typer.Option(help="Clients of the comparison with scipy; 0 leaves it out.")] = 1000,
    sizes: Annotated[str, typer.Option(help="Numbers of clients for time and memory.")] = "1000,3000,10000",
) -> None:
    """Print and write JSON."""
    RESULTS.mkdir(exist_ok=True)
    found: dict[str, Any] = {"threads": torch.get_num_threads(), "torch": torch.__version__, "growth": []}
    for size in map(int, sizes.split(",")):
        found["growth"].append(apart(size))
        print(json.dumps(found["growth"][-1]), flush=True)
    if clients:
        found["scipy"] = against_scipy(clients)
        print(json.dumps(found["scipy"]))
    (RESULTS / "server.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
