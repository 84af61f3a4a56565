"""The four natural federations: where do clusters pay, beside one model, the same fine-tuned, and everybody alone?

    python benchmarks/natural.py SET [--data-dir DIR] [--out FOLDER] [--seeds 100:103] [--methods fedavg,solo]
                                     [--device cuda] [--jobs 16]
    python benchmarks/natural.py SET --only-table

SET is heart-disease, wisdm, beijing-air or shakespeare. Every cell is a run folder, FOLDER/SET/METHOD-sSEED: a finished
one is not run again, and one that was stopped goes on where it stopped. `--jobs` cells run at a time, each a process
with its share of the cores. A seed parts each client's rows anew and is the models' seed; Beijing is parted by time,
so there it is the models' alone. All methods train for as many rounds, pre-training included. IFCA's number of clusters
is chosen for each seed by validation rows (runs under FOLDER/SET/tries, trained on the other rows), then it trains on
all rows as everybody does. Prints Markdown: the scores, the differences paired over seeds, and what each method said.
"""

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
import typer

import umbel
from umbel.data.natural import AHEAD, BEIJING_MEAN, BEIJING_STD
from umbel.data.plans import realise, save_plan
from umbel.data.scenarios import draw
from umbel.errors import UmbelError
from umbel.runs import compare
from umbel.runs.series import sessions
from umbel.runs.session import play

METHODS = ("fedavg", "solo", "fedprox", "ifca", "flag", "pacfl", "fedclust", "fedsoft", "cflgt")
CLUSTERS = (2, 3, 4, 5)  # of IFCA, by validation


class Setting(NamedTuple):
    """How a set is run."""

    model: str
    rounds: int  # pre-training included
    epochs: int
    settings: dict[str, Any] = {}  # noqa: RUF012 (never changed)
    clients: int | None = None  # those with the most rows; None = all
    rows: tuple[int, int] | None = None  # training and test rows of a client at most: its first ones


SETS = {
    "heart-disease": Setting("mlp", 15, 5, {"cflgt.pretrain": 5}),
    "wisdm": Setting("mlp", 15, 5, {"cflgt.pretrain": 5}),
    "beijing-air": Setting("tcn", 10, 1, {"cflgt.pretrain": 3}),
    "shakespeare": Setting("gru", 10, 1, {"cflgt.pretrain": 3, "lr": 0.5}, clients=60, rows=(64, 16)),
}


class Work(NamedTuple):
    """One run: of a cell, or one that IFCA's number of clusters is chosen by."""

    experiment: umbel.Experiment
    folder: Path


def cell(name: str, method: str, seed: int, folder: Path, data_dir: Path | None, device: str = "cpu") -> Work:
    """A method on a set."""
    how = SETS[name]
    partition = None if how.rows is None else str(_bounded(name, how, seed, folder, data_dir))
    common = umbel.Experiment(data=name, model=how.model, rounds=how.rounds, clients=how.clients, partition=partition,
                              eval_every=how.rounds, seed=seed, device=device)
    settings = {key: value for key, value in how.settings.items() if key.split(".")[0] in (method, "lr")}
    [made] = compare.planned([method], common, {"epochs": how.epochs, **settings}, 1, equal="rounds").runs.values()
    return Work(made, folder / f"{method}-s{seed}")


def _bounded(name: str, how: Setting, seed: int, folder: Path, data_dir: Path | None) -> Path:
    """The partition of a seed with no more rows of a client than are asked for."""
    path = folder / f"partition-s{seed}.npz"
    if not path.exists():
        plan = draw("natural", umbel.open_dataset(name, data_dir), clients=how.clients, seed=seed)
        train, test = how.rows or (0, 0)
        save_plan(path, replace(plan, train=[rows[:train] for rows in plan.train],
                                test=[rows[:test] for rows in plan.test]))
    return path


def tries(asked: Work) -> list[Work]:
    """The runs by which IFCA's number of clusters is chosen: on the rows that are not kept for validation."""
    of = asked.experiment
    return [Work(replace(of, fine_tune=0, settings={**of.settings, "clusters": clusters, "rows": "fit"}),
                 asked.folder.parent / "tries" / f"ifca-{clusters}-s{of.seed}") for clusters in CLUSTERS]


def best_ifca(asked: Work) -> Work:
    """The same with the number of clusters that serves validation rows best; all its tries are finished."""
    tried = {work.experiment.settings["clusters"]: umbel.load(work.folder) for work in tries(asked)}
    higher = tried[CLUSTERS[0]].metric.higher_is_better
    best = max(CLUSTERS, key=lambda k: tried[k].info["validation"] * (1 if higher else -1))
    settings = {**asked.experiment.settings, "clusters": best}
    return asked._replace(experiment=replace(asked.experiment, settings=settings))


def run(work: Work, data_dir: Path | None) -> float:
    """One run, unless it is finished, and how many seconds it took."""
    began = time.perf_counter()
    for session in sessions({work.folder.name: work.experiment}, work.folder.parent, data_dir):
        play(session)
    return time.perf_counter() - began


def run_all(cells: Sequence[Work], data_dir: Path | None, pool: Executor) -> Iterator[tuple[Work, float | UmbelError]]:
    """What each run took as it ends, or why there is none. IFCA's tries go first, since its cells wait for them."""
    before = {cell.folder: tries(cell) for cell in cells if cell.experiment.method == "ifca"}
    held = [cell for cell in cells if cell.folder in before]
    ready = [*(work for tried in before.values() for work in tried), *(cell for cell in cells if cell not in held)]
    waiting: dict[Future[float], Work] = {pool.submit(run, work, data_dir): work for work in ready}
    finished: set[Path] = set()
    while waiting:
        for ended in wait(waiting, return_when=FIRST_COMPLETED).done:
            work = waiting.pop(ended)
            try:
                took: float | UmbelError = ended.result()
                finished.add(work.folder)
            except UmbelError as error:
                took = error
            yield work, took
        for cell in [cell for cell in held if finished >= {work.folder for work in before[cell.folder]}]:
            held.remove(cell)
            waiting[pool.submit(run, best_ifca(cell), data_dir)] = cell


def at_once(jobs: int) -> ProcessPoolExecutor:
    """So many processes, with the cores divided among them."""
    return ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), _begin,
                               (max(1, (os.cpu_count() or 1) // jobs),))


def _begin(threads: int) -> None:
    """What a process does first: it takes its share of the cores, and sees to it that it ends with its owner."""
    torch.set_num_threads(threads)
    owner = multiprocessing.parent_process()
    assert owner is not None
    threading.Thread(target=lambda: (owner.join(), os._exit(1)), daemon=True).start()


# The table -----------------------------------------------------------------------------------------------------------


def found(folder: Path, methods: Sequence[str] = METHODS) -> dict[str, dict[int, umbel.Result]]:
    """The finished cells of a set: by method, then by seed."""
    cells: dict[str, dict[int, umbel.Result]] = {}
    for method in methods:
        for path in sorted(folder.glob(f"{method}-s*")):
            if (path / "result.json").exists():
                result = umbel.load(path)
                cells.setdefault(method, {})[result.info["seed"]] = result
    return cells


def table(cells: dict[str, dict[int, umbel.Result]]) -> str:
    """Markdown of finished cells; a difference is over the seeds that both have, and positive where the first is ahead.
    """
    metric = next(iter(next(iter(cells.values())).values())).metric
    unit, sign = (100 if metric.unit == "%" else 1), (1 if metric.higher_is_better else -1)
    lines = [f"{metric.name}{f' ({metric.unit})' if metric.unit else ''}"
             f", {'higher' if sign > 0 else 'lower'} is better", "",
             "| | as it serves | worst site | fine-tuned | worst site | clusters | MB down | MB up |",
             "|---|---|---|---|---|---|---|---|"]
    for method, runs in cells.items():
        parts = [_spread([unit * value(each, start) for each in runs.values()])
                 if kind == "mean" else f"{mean(unit * worst(each, start, sign) for each in runs.values()):.1f}"
                 for start in ("", "fine_tuned") for kind in ("mean", "worst")]
        counts = ", ".join(str(each.info["clusters"]["count"]) for each in runs.values())
        sent = [f"{mean(each.info['bytes'][way] for each in runs.values()) / 1e6:.1f}" for way in ("down", "up")]
        lines.append(f"| {method} | {' | '.join([*parts, counts, *sent])} |")
    lines += ["", "Ahead of, paired:", "", "| | fedavg | fedavg, fine-tuned | both fine-tuned | solo |",
              "|---|---|---|---|---|"]
    pairs = (("fedavg", "", ""), ("fedavg", "", "fine_tuned"), ("fedavg", "fine_tuned", "fine_tuned"), ("solo", "", ""))
    for method, runs in cells.items():
        gaps = [[sign * unit * (value(runs[seed], mine) - value(cells[other][seed], its))
                 for seed in runs if seed in cells.get(other, {})] for other, mine, its in pairs]
        lines.append(f"| {method} | {' | '.join(_spread(gap, '+') for gap in gaps)} |")
    return "\n".join(lines)


def value(result: umbel.Result, start: str = "") -> float:
    """A score by the set's metric: of the method as it serves its clients, or from another starting point."""
    return float(result.info["score"][start or result.info["headline"]]["value"])


def worst(result: umbel.Result, start: str, sign: int) -> float:
    """The score of the client that is served worst."""
    return float(min((client["score"][start or result.info["headline"]] for client in result.clusters["clients"]),
                     key=lambda score: sign * score))


def _spread(values: Sequence[float], sign: str = "") -> str:
    if not values:
        return ""
    return f"{mean(values):{sign}.1f}" + (f" ± {stdev(values):.1f}" if len(values) > 1 else "")


def reasons(cells: dict[str, dict[int, umbel.Result]]) -> str:
    """What each method said of its clusters, seed by seed."""
    lines = []
    for method, runs in cells.items():
        for seed, each in runs.items():
            why = each.info["clusters"]["why"]
            said = why if isinstance(why, str) else why.get("words", "")
            tuned = f"k = {each.info['params']['clusters']}; " if method == "ifca" else ""
            lines += [f"- {method}, {seed}: {tuned}{said}"] if said or tuned else []
    return "\n".join(lines)


def horizons(cells: dict[str, dict[int, umbel.Result]], data_dir: Path | None) -> str:
    """Beijing's mean absolute error 1, 6 and 24 hours ahead, mean over stations; first of the value that is now."""
    data = umbel.open_dataset("beijing-air", data_dir)
    people = realise(draw("natural", data), data)
    rows = dict(zip(people.names, people.test, strict=True))

    def error(foretell: Callable[[str, Any], Any]) -> Any:
        return np.mean([np.abs(foretell(name, people.pool.x[own]) - people.pool.y[own]).mean(0)
                        for name, own in rows.items()], axis=0)

    now = error(lambda name, x: (x[:, -1, :1] * BEIJING_STD[0] + BEIJING_MEAN[0]).repeat(len(AHEAD), 1))
    lines = [f"| PM2.5 in hours | {' | '.join(map(str, AHEAD))} |", "|---|---|---|---|",
             f"| stays as it is | {' | '.join(f'{each:.1f}' for each in now)} |"]
    for method, runs in cells.items():
        errors = np.array([error(lambda name, x, of=each: of.predict(x, client=name)) for each in runs.values()])
        lines.append(f"| {method} | {' | '.join(_spread(column.tolist()) for column in errors.T)} |")
    return "\n".join(lines)


def main(name: str, data_dir: Annotated[Path | None, typer.Option()] = None, out: Path = Path("natural"),
         seeds: Annotated[str, typer.Option(help="from:to")] = "100:103", methods: str = ",".join(METHODS),
         device: Annotated[str, typer.Option(help="cpu, cuda or auto")] = "cpu",
         jobs: Annotated[int, typer.Option(min=1, help="runs at a time")] = 1, only_table: bool = False) -> None:
    """Run what is not finished, and print the table."""
    first, last = map(int, seeds.split(":"))
    folder, refused = out / name, []
    folder.mkdir(parents=True, exist_ok=True)
    if not only_table:
        asked = [cell(name, method, seed, folder, data_dir, device)
                 for method in methods.split(",") for seed in range(first, last)]
        with at_once(jobs) as pool:
            for work, took in run_all(asked, data_dir, pool):
                said = took if isinstance(took, UmbelError) else f"{took:.0f} s"
                print(f"{work.folder.relative_to(folder)}: {said}", flush=True)
                refused += [f"- {work.folder.name}: {took}"] if isinstance(took, UmbelError) else []
    if cells := found(folder):
        print(table(cells), reasons(cells), "\n".join(refused), sep="\n\n")
        if name == "beijing-air":
            print(horizons(cells, data_dir))


if __name__ == "__main__":
    typer.run(main)
