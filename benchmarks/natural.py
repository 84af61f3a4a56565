"""The four natural federations: where do clusters pay, beside one model, the same fine-tuned, and everybody alone?

    python benchmarks/natural.py SET [--data-dir DIR] [--out FOLDER] [--seeds 100:103] [--methods fedavg,solo]
    python benchmarks/natural.py SET --only-table

SET is heart-disease, wisdm, beijing-air or shakespeare. Every cell is a run folder, FOLDER/SET/METHOD-sSEED, and a
finished one is not run again. A seed parts each client's rows anew and is the models' seed; Beijing is parted by time,
so there it is the models' alone. All methods train for as many rounds, pre-training included. IFCA's number of clusters
is chosen for each seed by validation rows (runs under FOLDER/SET/tries, trained on the other rows), then it trains on
all rows as everybody does. Prints Markdown: the scores, the differences paired over seeds, and what each method said.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Annotated, Any, NamedTuple

import numpy as np
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


def cell(name: str, method: str, seed: int, folder: Path, data_dir: Path | None) -> umbel.Experiment:
    """The experiment of a method on a set."""
    how = SETS[name]
    partition = None if how.rows is None else str(_bounded(name, how, seed, folder, data_dir))
    common = umbel.Experiment(data=name, model=how.model, rounds=how.rounds, clients=how.clients, partition=partition,
                              eval_every=how.rounds, seed=seed, device="cpu")
    settings = {key: value for key, value in how.settings.items() if key.split(".")[0] in (method, "lr")}
    [made] = compare.planned([method], common, {"epochs": how.epochs, **settings}, 1, equal="rounds").runs.values()
    return made


def _bounded(name: str, how: Setting, seed: int, folder: Path, data_dir: Path | None) -> Path:
    """The partition of a seed with no more rows of a client than are asked for."""
    path = folder / f"partition-s{seed}.npz"
    if not path.exists():
        plan = draw("natural", umbel.open_dataset(name, data_dir), clients=how.clients, seed=seed)
        train, test = how.rows or (0, 0)
        save_plan(path, replace(plan, train=[rows[:train] for rows in plan.train],
                                test=[rows[:test] for rows in plan.test]))
    return path


def run(experiment: umbel.Experiment, folder: Path, data_dir: Path | None) -> None:
    """One cell, unless it is finished."""
    for session in sessions({folder.name: experiment}, folder.parent, data_dir):
        play(session)


def best_ifca(experiment: umbel.Experiment, folder: Path, data_dir: Path | None) -> umbel.Experiment:
    """The same with the number of clusters that serves validation rows best."""
    tries = {}
    for clusters in CLUSTERS:
        settings = {**experiment.settings, "clusters": clusters}
        where = folder / "tries" / f"ifca-{clusters}-s{experiment.seed}"
        run(replace(experiment, fine_tune=0, settings={**settings, "rows": "fit"}), where, data_dir)
        tries[clusters] = umbel.load(where)
    higher = tries[CLUSTERS[0]].metric.higher_is_better
    best = max(CLUSTERS, key=lambda k: tries[k].info["validation"] * (1 if higher else -1))
    return replace(experiment, settings={**experiment.settings, "clusters": best})


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
    metric = next(iter(cells["fedavg"].values())).metric
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
            said = why if isinstance(why, str) else "; ".join(str(part) for part in why.values())
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


def _cells(name: str, seeds: range, methods: Sequence[str], folder: Path,
           data_dir: Path | None) -> Iterator[tuple[str, int, float]]:
    """Run what is not finished, a method of all seeds after the other; and how many seconds each took."""
    for method in methods:
        for seed in seeds:
            began = time.perf_counter()
            experiment = cell(name, method, seed, folder, data_dir)
            if method == "ifca":
                experiment = best_ifca(experiment, folder, data_dir)
            run(experiment, folder / f"{method}-s{seed}", data_dir)
            yield method, seed, time.perf_counter() - began


def main(name: str, data_dir: Annotated[Path | None, typer.Option()] = None, out: Path = Path("natural"),
         seeds: Annotated[str, typer.Option(help="from:to")] = "100:103", methods: str = ",".join(METHODS),
         only_table: bool = False) -> None:
    """Run what is not finished, and print the table."""
    first, last = map(int, seeds.split(":"))
    folder, asked, refused = out / name, methods.split(","), []
    folder.mkdir(parents=True, exist_ok=True)
    for method in () if only_table else asked:
        try:
            for _, seed, took in _cells(name, range(first, last), [method], folder, data_dir):
                print(f"{method}, seed {seed}: {took:.0f} s", flush=True)
        except UmbelError as error:
            refused.append(f"- {method}: {error}")
    cells = found(folder)
    print(table(cells), reasons(cells), "\n".join(refused), sep="\n\n")
    if name == "beijing-air":
        print(horizons(cells, data_dir))


if __name__ == "__main__":
    typer.run(main)
