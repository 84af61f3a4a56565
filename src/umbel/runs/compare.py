"""Paired runs: the same partitions, first weights, cohorts and batches for every method, over some seeds."""

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from umbel.algorithms import ALGORITHMS
from umbel.runs.checkpoint import read_json, write_json
from umbel.errors import UmbelError, unknown
from umbel.runs.evaluate import ACCURACIES
from umbel.runs.experiment import Experiment
from umbel.files import write_atomically
from umbel.runs.recipe import settable
from umbel.runs.run import Session, same_recipe


def experiments(methods: Sequence[str], common: Experiment, settings: Mapping[str, Any],
                seeds: int) -> list[Experiment]:
    """One experiment for each seed and method. `lr=0.1` goes to every method that has it, `fedprox.mu=1` to one."""
    for method in methods:
        if method not in ALGORITHMS:
            raise unknown("method", method, ALGORITHMS)
        if methods.count(method) > 1:
            raise UmbelError(f"Each method is compared once. Got '{method}' {methods.count(method)} times.")
    names = set().union(*(settable(ALGORITHMS[method]) for method in methods))
    known = names | {f"{method}.{name}" for method in methods for name in settable(ALGORITHMS[method])}
    for name in settings:
        if name not in known:
            raise unknown("setting of these methods named", name, known)
    return [
        replace(common, method=method, seed=common.seed + k, settings=own_settings(method, settings))
        for k in range(seeds) for method in methods
    ]


def own_settings(method: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What of these settings is for a method: those that it has, and those named for it, `fedprox.mu`."""
    mine = settable(ALGORITHMS[method])
    general = {name: value for name, value in settings.items() if name in mine}
    named = {name.removeprefix(f"{method}."): value for name, value in settings.items()
             if name.startswith(f"{method}.")}
    return {**general, **named}


def sessions(plan: Sequence[Experiment], out: Path, data_dir: Path | None) -> Iterator[Session]:
    """The runs still to do. Those under `out` that were done or begun earlier must be of the same comparison."""
    if (out / "recipe.toml").exists():
        raise UmbelError(f"The folder {out} must hold a comparison's runs. It is a run itself: choose another --out.")
    for experiment in plan:
        if (folder_of(out, experiment) / "recipe.toml").exists():
            same_recipe(folder_of(out, experiment), experiment)
    for experiment in plan:
        folder = folder_of(out, experiment)
        if (folder / "result.json").exists():
            continue
        if (folder / "recipe.toml").exists():
            yield Session.resume(folder, experiment, data_dir)
        else:
            yield Session.start(experiment, folder, data_dir)


def folder_of(out: Path, experiment: Experiment) -> Path:
    """Where one run of a comparison lies."""
    return out / f"{experiment.method}-s{experiment.seed}"


def table(out: Path, plan: Sequence[Experiment]) -> list[dict[str, Any]]:
    """One line a method, from the result.json files of its runs."""
    runs: dict[str, list[Any]] = {}
    for experiment in plan:
        runs.setdefault(experiment.method, []).append(read_json(folder_of(out, experiment) / "result.json"))
    return [_line(method, results) for method, results in runs.items()]


def _line(method: str, results: list[dict[str, Any]]) -> dict[str, Any]:
    headline = results[0]["headline"]
    clusters = [result["clusters"] for result in results]
    aris = [each["ari"] for each in clusters if each["ari"] is not None]
    line: dict[str, Any] = {
        "method": method,
        "seeds": len(results),
        "headline": headline,
        **_spread("accuracy", [result["accuracy"][headline]["mean"] for result in results]),
        "accuracy_std_over_clients": mean(result["accuracy"][headline]["std"] for result in results),
        "worst_decile": mean(result["accuracy"][headline]["worst_decile"] for result in results),
    }
    for kind in ACCURACIES:
        there = [result["accuracy"][kind]["mean"] for result in results if result["accuracy"][kind]]
        line[kind] = mean(there) if there else None
    return line | {
        "clusters": [each["count"] for each in clusters],
        "ari": mean(aris) if aris else None,
        "bytes_down": mean(result["bytes"]["down"] for result in results),
        "bytes_up": mean(result["bytes"]["up"] for result in results),
        "seconds": mean(result["seconds"]["total"] for result in results),
    }


def _spread(name: str, values: list[float]) -> dict[str, float | None]:
    """Mean, and the sample standard deviation over seeds where there are two or more."""
    return {name: mean(values), f"{name}_std_over_seeds": stdev(values) if len(values) > 1 else None}


def write(out: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    """compare.json and compare.csv beside the runs."""
    write_json(out / "compare.json", list(lines))
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(lines[0]))
    writer.writeheader()
    writer.writerows({name: json.dumps(value) if isinstance(value, list) else value for name, value in line.items()}
                     for line in lines)
    write_atomically(out / "compare.csv", text.getvalue().encode())
