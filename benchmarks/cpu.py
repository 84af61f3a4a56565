"""Local training on a CPU against others, the same work side by side in one run, as ratios; and its cost as work grows.

    python benchmarks/cpu.py [--peers .venv-peers/bin/python] [--repeats 3] [--no-growth]

Work: one round of FedAvg over 20 clients × 500 rows, one epoch, batch 10, momentum 0.5. Opponents: a plain torch loop,
and with `--peers` pfl 0.6.0 and Flower 1.41.0's Ray simulation from an environment of their own; loops with the better
of one and two threads. Every engine runs in a process of its own, in turn; the first round is not counted, nor is the
start. Medians over all rounds; the spread is their range. Then the cost of a round of umbel, of the plain loop and of
the peers against the number of clients (20 rows of 8 px each), of rows and of parameters (20 clients, an MLP).
"""

import json
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
RESULTS = HERE / "results"
WORK = {"lenet5": [3, 32, 32], "mlp": [1, 28, 28]}
BASE = {"clients": 20, "rows": 500, "batch": 10, "rounds": 3, "threads": 1, "workers": 2}
GROWTH: dict[str, list[dict[str, Any]]] = {
    "clients": [{"clients": n, "rows": 20, "shape": [1, 8, 8]} for n in (10, 100, 1000, 10_000)],
    "samples": [{"clients": 20, "rows": m} for m in (20, 100, 500, 2000)],
    "parameters": [{"clients": 20, "rows": 100, "shape": shape}
                   for shape in ([1, 8, 8], [1, 28, 28], [3, 32, 32], [3, 64, 64], [3, 128, 128])],
}
FLOWER_CLIENTS = 1000  # more take Ray minutes a round


def engines(peers: str | None) -> dict[str, tuple[str, list[str], dict[str, Any]]]:
    """Name of each engine: whose interpreter, which script, what to tell it."""
    ours, plain = [str(HERE / "ours.py")], [str(HERE / "peers" / "plain.py")]
    found = {
        "umbel, 2 workers": (sys.executable, ours, {"engine": "simulator", "workers": 2}),
        "umbel, loop engine": (sys.executable, ours, {"engine": "loop", "workers": 1}),
        "plain loop, 1 thread": (sys.executable, plain, {"threads": 1}),
        "plain loop, 2 threads": (sys.executable, plain, {"threads": 2}),
    }
    if peers:
        pfl, flower = [str(HERE / "peers" / "pfl_fedavg.py")], [str(HERE / "peers" / "flower_fedavg.py")]
        found |= {
            "pfl, 1 thread": (peers, pfl, {"threads": 1}),
            "pfl, 2 threads": (peers, pfl, {"threads": 2}),
            "Flower, Ray, 2 actors": (peers, flower, {}),
        }
    return found


def run(engine: tuple[str, list[str], dict[str, Any]], job: dict[str, Any]) -> dict[str, Any] | None:
    """One process; None where it fails, which is said."""
    python, script, told = engine
    command = [python, *script, json.dumps(BASE | job | told)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200,
                          env={**os.environ, "PYTHONWARNINGS": "ignore"}, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"seconds"')]
    if not lines:
        print(f"{script[0]} failed:\n{done.stderr[-2000:]}", file=sys.stderr)
        return None
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def side_by_side(peers: str | None, repeats: int) -> list[dict[str, Any]]:
    """Every engine in turn, `repeats` times; seconds of a round."""
    rows = []
    for model, shape in WORK.items():
        seconds: dict[str, list[float]] = {name: [] for name in engines(peers)}
        for _ in range(repeats):
            for name, engine in engines(peers).items():
                found = run(engine, {"model": model, "shape": shape})
                seconds[name] += found["seconds"] if found else []
        middle = {name: statistics.median(spans) for name, spans in seconds.items() if spans}
        rival = min((name for name in middle if name.startswith(("plain", "pfl"))), key=lambda name: middle[name])
        rows += [{"model": model, "engine": name, "median": middle[name], "least": min(spans), "most": max(spans),
                  "rounds": len(spans), "times_faster_than_best_loop": middle[rival] / middle[name], "best_loop": rival}
                 for name, spans in seconds.items() if spans]
    return rows


def growth(peers: str | None) -> list[dict[str, Any]]:
    """Seconds of a round as one quantity grows."""
    chosen = {name: engine for name, engine in engines(peers).items()
              if name in ("umbel, 2 workers", "plain loop, 1 thread", "pfl, 1 thread", "Flower, Ray, 2 actors")}
    rows = []
    for quantity, jobs in GROWTH.items():
        for job in jobs:
            shape = job.get("shape", [1, 28, 28])
            features = shape[0] * shape[1] * shape[2]
            parameters = 200 * (features + 1) + 2010
            amount = {"clients": job["clients"], "samples": job["rows"], "parameters": parameters}[quantity]
            for name, engine in chosen.items():
                if "Flower" in name and job["clients"] > FLOWER_CLIENTS:
                    continue
                if found := run(engine, {"model": "mlp", "shape": shape, "rounds": 2, **job}):
                    rows.append({"against": quantity, "amount": amount, "engine": name,
                                 "seconds": min(found["seconds"]), "peak_mb": found["peak_mb"]})
    return rows


def draw(rows: list[dict[str, Any]], file: Path) -> None:
    """Cost against clients, samples and parameters, where matplotlib is there."""
    try:
        import matplotlib as mpl
        mpl.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        print("No plots: matplotlib is not installed.", file=sys.stderr)
        return
    figure, axes = plt.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
    for axis, quantity in zip(axes, GROWTH, strict=True):
        for engine in dict.fromkeys(row["engine"] for row in rows):
            points = [(row["amount"], row["seconds"]) for row in rows
                      if row["against"] == quantity and row["engine"] == engine]
            axis.loglog(*zip(*points, strict=True), marker="o", label=engine)
        axis.set(xlabel={"clients": "clients (20 rows of 8 px each)", "samples": "rows a client (20 clients)",
                         "parameters": "parameters (20 clients × 100 rows)"}[quantity])
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("seconds a round")
    axes[0].legend(fontsize=8)
    for kind in ("png", "svg"):
        figure.savefig(file.with_suffix(f".{kind}"), dpi=150)


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {"cores": os.cpu_count(), "processor": platform.processor() or platform.machine(),
            "python": platform.python_version(), "torch": torch.__version__, "load": os.getloadavg()[0]}


def main(
    peers: Annotated[str | None, typer.Option(help="Python of the environment with pfl and Flower.")] = None,
    repeats: Annotated[int, typer.Option(help="Turns of every engine.")] = 3,
    grow: Annotated[bool, typer.Option("--growth/--no-growth", help="Also cost against size.")] = True,
) -> None:
    """Print a table, write JSON and plots."""
    RESULTS.mkdir(exist_ok=True)
    found: dict[str, Any] = {"machine": machine(), "work": BASE, "engines": side_by_side(peers, repeats)}
    table = Table(title=f"20 clients × 500 rows, batch 10, torch {torch.__version__}, {os.cpu_count()} cores")
    for column in ("model", "engine", "median (s)", "range (s)", "× best of plain loop and pfl"):
        table.add_column(column, justify="left" if column in ("model", "engine") else "right")
    for row in found["engines"]:
        table.add_row(row["model"], row["engine"], f"{row['median']:.2f}", f"{row['least']:.2f}–{row['most']:.2f}",
                      f"{row['times_faster_than_best_loop']:.2f}")
    Console(width=120).print(table)
    file = RESULTS / ("cpu-peers.json" if peers else "cpu.json")
    file.write_text(json.dumps(found, indent=1) + "\n")
    if grow:
        found["growth"] = growth(peers)
        file.write_text(json.dumps(found, indent=1) + "\n")
        draw(found["growth"], file)
    print(f"written: {file}")


if __name__ == "__main__":
    typer.run(main)
