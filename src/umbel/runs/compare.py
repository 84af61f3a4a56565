"""Paired runs: the same partitions, first weights, cohorts and batches for every method, over some seeds."""

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

from umbel.algorithms import ALGORITHMS
from umbel.algorithms.base import Algorithm
from umbel.errors import UmbelError, unknown
from umbel.federation.door import Federation
from umbel.fields import SEEDS, bounded
from umbel.files import refuse_linked_folder, write_atomically, write_json
from umbel.runs.evaluate import STARTS
from umbel.runs.experiment import Experiment
from umbel.runs.recipe import settable, settings_of
from umbel.runs.result import Result, data_frame
from umbel.runs.sealed import Sealed
from umbel.runs.session import Session, load, play, run, same_recipe

if TYPE_CHECKING:
    import pandas
    from rich.console import Console


def experiments(methods: Sequence[str], common: Experiment, settings: Mapping[str, Any],
                seeds: int) -> list[Experiment]:
    """One experiment for each seed and method. `lr=0.1` goes to every method that has it, `fedprox.mu=1` to one."""
    seeds = bounded(seeds, "seeds", "a comparison", ge=1, le=SEEDS)
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


def sessions(plan: Sequence[Experiment], out: Path, data_dir: Path | None, workers: int = 1) -> Iterator[Session]:
    """The runs still to do. Those under `out` that were done or begun earlier must be of the same comparison."""
    for folder in (out, *(folder_of(out, experiment) for experiment in plan)):
        refuse_linked_folder(folder)
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
            yield Session.resume(folder, experiment, data_dir, workers=workers)
        else:
            yield Session.start(experiment, folder, data_dir, workers)


def folder_of(out: Path, experiment: Experiment) -> Path:
    """Where one run of a comparison lies."""
    return out / f"{experiment.method}-s{experiment.seed}"


def table(out: Path, plan: Sequence[Experiment]) -> list[dict[str, Any]]:
    """One line a method, from the result.json files of its runs."""
    return lines_of([Sealed(folder_of(out, experiment)).result() for experiment in plan])


def lines_of(infos: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One line a method, from the results of its seeds."""
    runs: dict[str, list[Any]] = {}
    for info in infos:
        runs.setdefault(info["method"], []).append(info)
    return [_line(method, results) for method, results in runs.items()]


def _line(method: str, results: list[dict[str, Any]]) -> dict[str, Any]:
    headline = results[0]["headline"]
    clusters = [result["clusters"] for result in results]
    aris = [each["ari"] for each in clusters if each["ari"] is not None]

    def over(start: str, name: str) -> list[float]:  # the seeds that have it
        found = ((result["score"][start] or {}).get(name) for result in results)
        return [value for value in found if value is not None]

    scores = over(headline, "value")
    return {
        "method": method,
        "seeds": len(results),
        "headline": headline,
        "metric": results[0]["metric"],
        "score": _mean(scores),
        "score_std_over_seeds": stdev(scores) if len(scores) > 1 else None,
        "score_std_over_clients": _mean(over(headline, "std")),
        "worst_decile": _mean(over(headline, "worst_decile")),
        **{start: _mean(over(start, "value")) for start in STARTS},
        "clusters": [each["count"] for each in clusters],
        "ari": mean(aris) if aris else None,
        "bytes_down": mean(result["bytes"]["down"] for result in results),
        "bytes_up": mean(result["bytes"]["up"] for result in results),
        "seconds": mean(result["seconds"]["total"] for result in results),
    }


def _mean(values: list[float]) -> float | None:
    return mean(values) if values else None


def write(out: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    """compare.json and compare.csv beside the runs."""
    write_json(out / "compare.json", list(lines))
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(lines[0]))
    writer.writeheader()
    writer.writerows({name: json.dumps(value) if isinstance(value, list) else value
                      for name, value in _named(line).items()} for line in lines)
    write_atomically(out / "compare.csv", text.getvalue().encode())


def _named(line: Mapping[str, Any]) -> dict[str, Any]:
    """A line for a table: of the metric its name alone."""
    return {**line, "metric": line["metric"]["name"]}


@dataclass(frozen=True, repr=False)
class Comparison:
    """Methods side by side: `lines` has one for each method, `results` one for each method and seed."""

    lines: list[dict[str, Any]]
    results: list[Result]
    title: str

    def to_pandas(self) -> "pandas.DataFrame":
        """The lines as a table, by method."""
        return data_frame([_named(line) for line in self.lines], "method")

    def __repr__(self) -> str:
        return self._drawn().export_text().rstrip()

    def _repr_html_(self) -> str:
        """The same table, for notebooks."""
        return self._drawn().export_html(inline_styles=True, code_format="<pre>{code}</pre>")

    def _drawn(self) -> "Console":
        from rich.console import Console

        from umbel.runs import screen

        console = Console(record=True, width=110, file=io.StringIO())
        console.print(screen.compare_table(self.lines, self.title))
        return console


def compare(methods: Sequence[str | Algorithm], fed: Federation | None = None, *, seeds: int = 1,
            out: str | Path | None = None, data_dir: str | Path | None = None, workers: int = 1,
            progress: bool = False, settings: Mapping[str, Any] | None = None, **choices: Any) -> Comparison:
    """Run several methods on the same clients, first weights, cohorts and batches.

        umbel.compare(["fedavg", umbel.FLAG(beta=1.0)], fed, rounds=20)
        umbel.compare(["fedavg", "flag"], data="digits", scenario="rotation-4", clients=12, seeds=3, rounds=20)

    On a federation, `choices` are those of `umbel.run`; otherwise all fields of `umbel.Experiment`, and `settings` as
    on the command line (`{"lr": 0.1, "fedprox.mu": 1.0}`). With `out` the runs are kept there, and a comparison that
    was stopped is continued.
    """
    if fed is not None:
        if seeds != 1:
            raise UmbelError("A federation has the seed it was made with: compare over seeds by data=..., or make"
                             f" federations of other seeds. Got seeds={seeds} instead of 1.")
        results = [run(method, fed, progress=progress, out=None if out is None else Path(out) / _name(method),
                       **choices) for method in methods]
    else:
        plan = _plan(methods, settings or {}, seeds, choices)
        folder = None if data_dir is None else Path(data_dir)
        if out is None:
            results = [_once(experiment, folder, workers, progress) for experiment in plan]
        else:
            for session in sessions(plan, Path(out), folder, workers):
                play(session, progress)
            results = [load(folder_of(Path(out), experiment)) for experiment in plan]
    lines = lines_of([result.info for result in results])
    if out is not None:
        write(Path(out), lines)
    first = results[0].info
    title = [first["data"], first["scenario"], f"{first['clients']} clients", f"rounds: {first['rounds']['after']}"]
    return Comparison(lines, results, ", ".join(str(word) for word in title if word))


def _name(method: str | Algorithm) -> str:
    return method if isinstance(method, str) else method.name


def _plan(methods: Sequence[str | Algorithm], settings: Mapping[str, Any], seeds: int,
          choices: Mapping[str, Any]) -> list[Experiment]:
    """An object's settings are those of its method alone."""
    own = {f"{method.name}.{name}": value for method in methods if not isinstance(method, str)
           for name, value in settings_of(method).items()}
    return experiments([_name(method) for method in methods], Experiment(**choices), {**settings, **own}, seeds)


def _once(experiment: Experiment, data_dir: Path | None, workers: int, progress: bool) -> Result:
    resolved = experiment.resolved()
    fed, algorithm = resolved.build(*resolved.draw(data_dir), workers=workers)
    try:
        return run(algorithm, fed, progress=progress, **asdict(resolved.options))
    finally:
        fed.close()
