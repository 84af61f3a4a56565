"""Paired runs: the same partitions, first weights, cohorts and batches for every method, over some seeds."""

import io
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, stdev
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from umbel.algorithms import ALGORITHMS
from umbel.algorithms.base import Algorithm
from umbel.errors import UmbelError, unknown
from umbel.federation.door import Federation
from umbel.fields import SEEDS, bounded
from umbel.files import write_json
from umbel.nets.objective import Metric
from umbel.plugins import label
from umbel.runs.evaluate import STARTS
from umbel.runs.experiment import Experiment
from umbel.runs.recipe import settable, settings_of
from umbel.runs.result import Result, data_frame, method_word
from umbel.runs.sealed import Sealed
from umbel.runs.series import AS_LONG, COSTS, Equal, combinations, sessions, write_csv
from umbel.runs.session import load, play, run

if TYPE_CHECKING:
    import pandas
    from rich.console import Console


EQUAL = ("rounds", "steps", "bytes")  # what all methods can be given alike


@dataclass(frozen=True)
class Plan:
    """The runs of a comparison by their names, and what they are for."""

    runs: dict[str, Experiment]
    tuned: dict[str, dict[str, Any]]  # by the name of a run: the settings of the combination that it tries
    equal: Equal | None = None


def planned(methods: Sequence[str], common: Experiment, settings: Mapping[str, Any], seeds: int,
            tune: Sequence[str] = (), equal: str = "") -> Plan:
    """A run for each seed, method and combination of the values to be tried.

    `lr=0.1` goes to every method that has it, `fedprox.mu=1` to one. With `tune`, all train on their `fit` rows and are
    chosen by the others. With `equal`, all get the total of `rounds`, pre-training included, or what the first method
    costs in `steps` or `bytes`.
    """
    if equal not in ("", *EQUAL):
        raise UmbelError(f"What methods are given alike is {', '.join(EQUAL[:-1])} or {EQUAL[-1]}. Got '{equal}'"
                         " instead.")
    seeds = bounded(seeds, "seeds", "a comparison", ge=1, le=SEEDS)
    for method in methods:
        ALGORITHMS.find(method)
        if methods.count(method) > 1:
            raise UmbelError(f"Each method is compared once. Got '{method}' {methods.count(method)} times.")
    names = set().union(*(settable(ALGORITHMS[method]) for method in methods))
    known = names | {f"{method}.{name}" for method in methods for name in settable(ALGORITHMS[method])}
    tried = combinations(tune, "--tune")
    for name in [*settings, *tried[0]]:
        if name not in known:
            raise unknown("setting of these methods named", name, known)
    if twice := [name for name in tried[0] if name in settings]:
        raise UmbelError(f"A setting is given or tuned. Got '{twice[0]}' for both.")
    runs: dict[str, Experiment] = {}
    combos: dict[str, dict[str, Any]] = {}
    for k in range(seeds):
        for method in methods:
            each = {repr(own): own for own in (own_settings(method, combo) for combo in tried)}  # some lack a setting
            for combo in each.values():
                own = own_settings(method, settings) | combo | ({"rows": "fit"} if tune else {})
                one = replace(common, method=method, seed=common.seed + k, settings=own)
                name = "-".join([label(method), *([_words(combo)] if combo else []), f"s{one.seed}"])
                runs[name] = _given_alike(one, equal, first=method == methods[0])
                combos[name] = {key: one.settings[key] for key in combo}
    return Plan(runs, combos, _as_the_first(runs, equal))


def _given_alike(one: Experiment, equal: str, first: bool) -> Experiment:
    """The same run with the rounds that it may have at most."""
    method = one.algorithm()
    if equal == "rounds" and one.rounds <= method.pretrain:
        raise UmbelError(f"With --equal rounds, --rounds counts the {method.pretrain} rounds before {method.name} forms"
                         f" its clusters, and must be more. Got {one.rounds} instead.")
    if equal == "rounds":
        return replace(one, rounds=one.rounds - method.pretrain)
    if not equal or first:
        return one
    if method.local.ends_with_the_run:
        raise UmbelError(f"With --equal {equal} nobody knows how many rounds {method.name} has: a schedule needs a"
                         f" horizon (--set horizon={one.rounds}). Got schedule '{method.local.schedule}' without one.")
    return replace(one, rounds=AS_LONG * one.rounds)


def _as_the_first(runs: Mapping[str, Experiment], equal: str) -> Equal | None:
    if equal not in COSTS:
        return None
    first: dict[int, str] = {}
    for name, each in runs.items():
        first.setdefault(each.seed, name)
    method = next(iter(runs.values())).method
    return Equal(equal, {name: first[each.seed] for name, each in runs.items() if each.method != method})


def _words(combo: Mapping[str, Any]) -> str:
    """Settings as a part of a folder's name."""
    return re.sub(r"[^\w.=,-]+", "_", ",".join(f"{name}={value}" for name, value in combo.items()))


def own_settings(method: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What of these settings is for a method: those that it has, and those named for it, `fedprox.mu`."""
    mine = settable(ALGORITHMS[method])
    general = {name: value for name, value in settings.items() if name in mine}
    named = {name.removeprefix(f"{method}."): value for name, value in settings.items()
             if name.startswith(f"{method}.")}
    return {**general, **named}


def table(out: Path, plan: Plan) -> list[dict[str, Any]]:
    """One line a method, from the result.json files of its runs; of several combinations, the best by validation."""
    infos = {name: Sealed(out / name).result() for name in plan.runs}
    lines = []
    for method in dict.fromkeys(each.method for each in plan.runs.values()):
        tried: dict[str, list[str]] = {}
        for name, each in plan.runs.items():
            if each.method == method:
                tried.setdefault(repr(plan.tuned[name]), []).append(name)
        scores = {words: _validation([infos[name] for name in names]) for words, names in tried.items()}
        chosen = _best(method, scores, Metric.of(infos[tried[next(iter(tried))][0]]["metric"]))
        line = line_of([infos[name] for name in tried[chosen]])
        if plan.runs[tried[chosen][0]].algorithm().local.rows == "fit" and any(plan.tuned.values()):
            line["tuned"] = {"chosen": plan.tuned[tried[chosen][0]], "tried": [
                {"settings": plan.tuned[names[0]], "validation": scores[words]} for words, names in tried.items()]}
        lines.append({**line, "runs": tried[chosen]})
    return lines


def _validation(infos: Sequence[Mapping[str, Any]]) -> float | None:
    known = [info["validation"] for info in infos if info.get("validation") is not None]
    return _mean(known) if len(known) == len(infos) else None


def _best(method: str, scores: Mapping[str, float | None], metric: Metric) -> str:
    """The combination with the best validation score; of equal ones the first."""
    if len(scores) == 1:
        return next(iter(scores))
    known = {words: score for words, score in scores.items() if score is not None}
    if not known:
        raise UmbelError(f"A method is tuned by validation rows, and no client of '{method}' has some that define the"
                         " metric: leave out --tune, or take clients with more rows.")
    best = next(iter(known))
    for words, score in known.items():
        best = words if metric.better(score, known[best]) else best
    return best


def lines_of(infos: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One line a method, from the results of its seeds."""
    runs: dict[str, list[Any]] = {}
    for info in infos:
        runs.setdefault(info["method"], []).append(info)
    return [line_of(results) for results in runs.values()]


def line_of(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the seeds of one method and setting reached."""
    headline = results[0]["headline"]
    clusters = [result["clusters"] for result in results]
    aris = [each["ari"] for each in clusters if each["ari"] is not None]

    def over(start: str, name: str) -> list[float]:  # the seeds that have it
        found = ((result["score"][start] or {}).get(name) for result in results)
        return [value for value in found if value is not None]

    scores = over(headline, "value")
    return {
        "method": results[0]["method"],
        "seeds": len(results),
        "rounds": [result["rounds"]["pretrain"] + result["rounds"]["after"] for result in results],
        "pretrain": max(result["rounds"]["pretrain"] for result in results),
        "steps": mean(steps) if (steps := [result["steps"] for result in results if "steps" in result]) else None,
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
    write_csv(out / "compare.csv", [_named(line) for line in lines])


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
            progress: bool = False, settings: Mapping[str, Any] | None = None, tune: Sequence[str] = (),
            equal: str = "", **choices: Any) -> Comparison:
    """Run several methods on the same clients, first weights, cohorts and batches.

        umbel.compare(["fedavg", umbel.FLAG(beta=1.0)], fed, rounds=20)
        umbel.compare(["fedavg", "flag"], data="digits", scenario="rotation-4", clients=12, seeds=3, rounds=20)

    On a federation, `choices` are those of `umbel.run`; otherwise all fields of `umbel.Experiment`, and `settings` as
    on the command line (`{"lr": 0.1, "fedprox.mu": 1.0}`), `tune` (`["lr=0.01,0.1"]`) and `equal` too. With `out` the
    runs are kept there, and a comparison that was stopped is continued.
    """
    if fed is not None:
        if tune or equal:
            raise UmbelError("A comparison is tuned, or given equal shares, where it makes its federations itself, by"
                             " data=... Got a federation.")
        if seeds != 1:
            raise UmbelError("A federation has the seed it was made with: compare over seeds by data=..., or make"
                             f" federations of other seeds. Got seeds={seeds} instead of 1.")
        results = [run(method, fed, progress=progress, out=None if out is None else Path(out) / _name(method),
                       **choices) for method in methods]
    else:
        return _in_folder(_plan(methods, settings or {}, seeds, tune, equal, choices), out, data_dir, workers, progress)
    lines = lines_of([result.info for result in results])
    if out is not None:
        write(Path(out), lines)
    return _shown(lines, results)


def _in_folder(plan: Plan, out: str | Path | None, data_dir: str | Path | None, workers: int,
               progress: bool) -> Comparison:
    """Runs by their recipes, in a folder; in one for the time being where none is named."""
    with ExitStack() as end:
        folder = Path(out) if out is not None else Path(end.enter_context(TemporaryDirectory())) / "runs"
        for session in sessions(plan.runs, folder, None if data_dir is None else Path(data_dir), workers, plan.equal):
            play(session, progress)
        lines = table(folder, plan)
        write(folder, lines)
        return _shown(lines, [load(folder / name) for line in lines for name in line["runs"]])


def _shown(lines: list[dict[str, Any]], results: list[Result]) -> Comparison:
    first = results[0].info
    title = [first["data"], first["scenario"], f"{first['clients']} clients", f"rounds: {first['rounds']['after']}"]
    return Comparison(lines, results, ", ".join(str(word) for word in title if word))


def _name(method: str | Algorithm) -> str:
    return method if isinstance(method, str) else method_word(method)


def _plan(methods: Sequence[str | Algorithm], settings: Mapping[str, Any], seeds: int, tune: Sequence[str], equal: str,
          choices: Mapping[str, Any]) -> Plan:
    """An object's settings are those of its method alone."""
    own = {f"{_name(method)}.{name}": value for method in methods if not isinstance(method, str)
           for name, value in settings_of(method).items()}
    names = [_name(method) for method in methods]
    return planned(names, Experiment(**choices), {**settings, **own}, seeds, tune, equal)
