"""One method under all combinations of some settings: what does its score depend on?"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, get_type_hints

from umbel.algorithms import ALGORITHMS
from umbel.data import scenarios
from umbel.data.scenarios import SCENARIOS
from umbel.errors import UmbelError, unknown
from umbel.fields import SEEDS, alternatives, bounded
from umbel.files import write_json
from umbel.plugins import label
from umbel.runs.compare import line_of
from umbel.runs.experiment import Experiment
from umbel.runs.recipe import parsed, settable
from umbel.runs.sealed import Sealed
from umbel.runs.series import MOST, combinations, write_csv

FIXED = {"method", "seed", "partition", "settings", "plugins"}  # choices of a run that are no settings to vary


@dataclass(frozen=True)
class Variation:
    """The runs by their names, and the values that each stands for."""

    method: str
    runs: dict[str, Experiment]
    values: dict[str, dict[str, Any]]  # by the name of a run


def planned(experiment: Experiment, over: Sequence[str], seeds: int) -> Variation:
    """A run for each seed and combination of values.

    A name is a setting of the method, a choice of the run (`clients`, `fraction` ...), or a number of its scenario,
    `scenario.alpha`.
    """
    if not over:
        raise UmbelError("Say what to vary, as in --over lr=0.01,0.1.")
    seeds = bounded(seeds, "seeds", "a variation", ge=1, le=SEEDS)
    combos = combinations(over, "--over")
    bounded(seeds * len(combos), "runs", "a variation", ge=1, le=MOST)
    runs: dict[str, Experiment] = {}
    values: dict[str, dict[str, Any]] = {}
    for combo in combos:
        for k in range(seeds):
            run = replace(experiment, seed=experiment.seed + k)
            read = {}
            for name, text in combo.items():
                run, read[name] = _with(run, name, text)
            words = re.sub(r"[^\w.=,-]+", "_", ",".join(f"{name}={text}" for name, text in combo.items()))
            runs[f"{words}-s{run.seed}"] = run
            values[f"{words}-s{run.seed}"] = read
    if len(runs) < seeds * len(combos):
        raise UmbelError(f"Each combination of values needs a folder of its own name. Got {', '.join(over)}, where two"
                         " have one.")
    return Variation(experiment.method, runs, values)


def _with(run: Experiment, name: str, text: str) -> tuple[Experiment, Any]:
    """The run with another value, and the value as it is read."""
    choices = {each.name for each in fields(Experiment)} - FIXED
    settings = settable(ALGORITHMS[run.method])
    scenario, _, parameter = name.partition(".")
    if name in settings:
        run = replace(run, settings={**run.settings, name: text})
        return run, run.settings[name]
    if name in choices:
        value = parsed(text, alternatives(get_type_hints(Experiment)[name]))
        return replace(run, **{name: value}), value
    usual = str(run.resolved().scenario)
    if scenario == "scenario" and parameter:
        return replace(run, scenario=_with_parameter(usual, parameter, text)), parsed(text, (int, float))
    known = [*settings, *choices, *(f"scenario.{each}" for part, _ in scenarios.parse(usual)
                                    for each in SCENARIOS[part].parameters)]
    raise unknown(f"setting of {label(run.method)} or of the run named", name, known)


def _with_parameter(scenario: str, parameter: str, text: str) -> str:
    """A scenario with another number, in its first part that has one of this name."""
    parts = scenario.split("+")
    for k, part in enumerate(parts):
        [(name, given)] = scenarios.parse(part)
        if parameter in SCENARIOS[name].parameters:
            numbers = ",".join(f"{key}={value}" for key, value in {**given, parameter: text}.items())
            parts[k] = f"{name}:{numbers}"
            return "+".join(parts)
    raise unknown(f"parameter of {scenario} named", parameter,
                  [each for part in parts for each in SCENARIOS[scenarios.parse(part)[0][0]].parameters])


def table(out: Path, variation: Variation) -> list[dict[str, Any]]:
    """One line a combination, from the result.json files of its runs."""
    together: dict[str, list[str]] = {}
    for name, values in variation.values.items():
        together.setdefault(repr(values), []).append(name)
    return [{"settings": variation.values[names[0]], "runs": names,
             **line_of([Sealed(out / name).result() for name in names])} for names in together.values()]


def write(out: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    """vary.json and vary.csv beside the runs; in the latter each setting has a column."""
    write_json(out / "vary.json", list(lines))
    write_csv(out / "vary.csv", [
        {**line["settings"], **{name: value for name, value in line.items() if name != "settings"},
         "metric": line["metric"]["name"]} for line in lines])
