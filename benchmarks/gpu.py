"""The simulator on a GPU: time of one epoch of local training, ratio to the loop, distance to the arithmetic limit.

    python benchmarks/gpu.py [--repeats 10] [--profile]

Work: K clients × 500 rows, batch 10, SGD with momentum 0.5, one epoch: 50 steps in a row. A round is FedAvg's: draw
the batches, train, check the answers, average; `steps` are the 50 steps alone. The limit is the model's
multiplications and additions (counted by torch) over the rate of a large product in the same precision, measured in
the same run. Needs torch, numpy, scipy, scikit-learn, safetensors, typer and rich.
"""

import json
import os
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from engines import LOCAL, population
from rich.console import Console
from rich.table import Table
from torch.utils.flop_counter import FlopCounterMode

from umbel import tree
from umbel.algorithms import FedAvg
from umbel.clustering.proximity import smallest_angle, symmetric
from umbel.engines import LoopEngine, Simulator
from umbel.federation.door import Cohort, Federation
from umbel.nets.model import PRECISIONS, Batch, Model
from umbel.nets.wrap import build
from umbel.tree import Ragged, Stack

ROWS = 500
WORK = [  # model, shape, clients, precisions
    ("lenet5", (3, 32, 32), 20, ("tf32", "float32", "bf16")),
    ("lenet5", (3, 32, 32), 100, ("tf32", "float32")),
    ("lenet5", (1, 28, 28), 20, ("tf32", "float32")),
    ("mlp", (1, 28, 28), 20, ("tf32", "float32", "bf16")),
    ("mlp", (1, 28, 28), 100, ("tf32", "float32")),
]


def one_round(fed: Federation) -> tuple[Stack, float]:
    algorithm = FedAvg(local=LOCAL)
    state = algorithm.init(fed, 0)
    torch.cuda.synchronize()
    started = time.perf_counter()
    state = algorithm.round(fed, state, Cohort(torch.arange(len(fed.names)), 0))
    torch.cuda.synchronize()
    return tree.to(state.models, "cpu"), 1000 * (time.perf_counter() - started)


def only_steps(fed: Simulator) -> float:
    """Replay the steps of the last round."""
    recorded = list(fed.recorded.values())[-1]
    recorded.turn.zero_()
    torch.cuda.synchronize()
    started = time.perf_counter()
    recorded.play(len(fed.names), ROWS // LOCAL.batch)
    torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - started)


def operations(net: Model) -> int:
    """Of one row, forwards and backwards."""
    with FlopCounterMode(display=False) as counter:
        net.gradient(net.init(0), Batch(torch.rand(1, *net.shape), torch.zeros(1, dtype=torch.int64)))
    return int(counter.get_total_flops())


def rate(precision: str, side: int = 8192) -> float:
    """Operations a second of a large product."""
    torch.backends.cuda.matmul.fp32_precision = "tf32" if precision == "tf32" else "ieee"
    a = torch.randn(side, side, device="cuda", dtype=torch.bfloat16 if precision == "bf16" else torch.float32)
    spans = []
    for _ in range(6):
        torch.cuda.synchronize()
        started = time.perf_counter()
        a @ a
        torch.cuda.synchronize()
        spans.append(time.perf_counter() - started)
    return 2 * side**3 / min(spans)


def profiled(fed: Federation, trace: Path) -> None:
    """Write where a round spends its time, on the host and on the GPU: a trace, and the kernels as a table."""
    with torch.profiler.profile() as profile:
        one_round(fed)
    profile.export_chrome_trace(str(trace))
    kernels = profile.key_averages().table(sort_by="cuda_time_total", row_limit=40, max_name_column_width=60)
    trace.with_suffix(".txt").write_text(kernels)


def of_pairs(clients: int, rank: int = 3, features: int = 3072) -> dict[str, float]:
    """Smallest principal angles of all pairs of clients: seconds, and peak of memory above the inputs."""
    vectors = torch.linalg.qr(torch.randn(clients, features, rank, device="cuda"))[0].mT.contiguous()
    given = Ragged(vectors, torch.full((clients,), rank))
    spans = []
    for _ in range(4):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before, started = torch.cuda.memory_allocated(), time.perf_counter()
        symmetric(smallest_angle(given, given))
        torch.cuda.synchronize()
        spans.append(time.perf_counter() - started)
    return {"clients": clients, "seconds": statistics.median(spans[1:]),
            "peak_above_inputs_mb": (torch.cuda.max_memory_allocated() - before) / 2**20}


def main(
    repeats: Annotated[int, typer.Option(help="Timed rounds, after two that are not timed.")] = 10,
    profile: Annotated[bool, typer.Option("--profile", help="Write a round's trace and kernels to files.")] = False,
) -> None:
    """Print a table; write gpu.json."""
    if not torch.cuda.is_available():
        raise SystemExit("This benchmark needs a GPU that torch can use.")
    out = Path(os.environ.get("OUT", "."))
    rates = {precision: rate(precision) for precision in PRECISIONS}
    table = Table(title=f"One epoch of K clients × {ROWS} rows, batch 10, {torch.cuda.get_device_name()}, torch"
                  f" {torch.__version__}, median of {repeats} rounds")
    for column in ("model", "K", "precision", "round (ms)", "spread", "steps (ms)", "first (s)", "loop (ms)", "ratio",
                   "limit (ms)", "largest diff. to CPU"):
        table.add_column(column, justify="left" if column == "model" else "right")
    lines: list[dict[str, Any]] = []
    to_profile: dict[Path, Simulator] = {}
    for name, shape, clients, precisions in WORK:
        net, people = build(name, shape, 10), population(shape, clients, ROWS)
        reference = one_round(LoopEngine(net, people))[0] if clients <= 20 else None
        slow = one_round(LoopEngine(net, people, device="cuda"))[1] if clients <= 20 else None
        for precision in precisions:
            fast = Simulator(replace(net, precision=precision), people, device="cuda")
            started = time.perf_counter()
            found, _ = one_round(fast)
            first = time.perf_counter() - started
            one_round(fast)
            spans = [one_round(fast)[1] for _ in range(repeats)]
            middle, steps = statistics.median(spans), statistics.median(only_steps(fast) for _ in range(repeats))
            limit = 1000 * operations(net) * clients * ROWS / rates[precision]
            gap = None if reference is None else float((tree.flat(found) - tree.flat(reference)).abs().max())
            lines.append({"model": name, "shape": shape, "clients": clients, "precision": precision, "ms": spans,
                          "steps_ms": steps,
                          "first_s": first, "loop_ms": slow, "limit_ms": limit, "gap": gap})
            table.add_row(f"{name} {'×'.join(map(str, shape))}", str(clients), precision, f"{middle:.1f}",
                          f"{min(spans):.1f}–{max(spans):.1f}", f"{steps:.1f}", f"{first:.1f}",
                          f"{slow:.0f}" if slow else "",
                          f"{slow / middle:.0f}" if slow else "", f"{limit:.2f}", "" if gap is None else f"{gap:.0e}")
            if profile and precision == "tf32":
                to_profile[out / f"trace-{name}-{shape[-1]}-{clients}.json"] = fast
    pairs = [of_pairs(clients) for clients in (1000, 10_000)]
    (out / "gpu.json").write_text(json.dumps({"rates": rates, "rounds": lines, "proximity": pairs}, indent=1))
    Console(width=150).print(table)
    for line in pairs:
        print(f"Smallest angles of {line['clients']:,} clients (3 x 3,072): {line['seconds']:.3f} s,"
              f" {line['peak_above_inputs_mb']:.0f} MB above the inputs")
    for trace, fast in to_profile.items():  # last: what has been profiled once stays slower
        profiled(fast, trace)


if __name__ == "__main__":
    typer.run(main)
