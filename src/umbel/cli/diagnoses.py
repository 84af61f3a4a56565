"""What `umbel diagnose` does."""

from dataclasses import fields
from pathlib import Path
from typing import Any

from umbel.algorithms.auto import Auto
from umbel.algorithms.base import Local
from umbel.cli.base import cores
from umbel.cli.sessions import typed_options, typed_settings
from umbel.diagnosis.diagnose import Diagnosis, diagnosed
from umbel.errors import UmbelError
from umbel.runs.experiment import Experiment
from umbel.runs.sealed import Sealed

RECAST = {"rounds", "engine", "device", "precision"}  # what may be other than in a run that is diagnosed


def of(*, run: Path | None, trial: bool, setting: list[str] | None, epochs: int | None, batch: int | None,
       lr: float | None, optimiser: str | None, schedule: str | None, data_dir: Path | None, workers: int | None,
       **choices: Any) -> Diagnosis:
    """Draw the federation, a run's or one that was typed, and diagnose it.

    `choices` are fields of an Experiment, None where nothing was typed.
    """
    settings = typed_settings(setting, epochs=epochs, batch=batch, lr=lr, optimiser=optimiser, schedule=schedule)
    options = typed_options(choices)
    if run is None:
        experiment = Experiment(method="auto", **options, settings=settings).resolved()
    elif set(options) - RECAST:
        raise UmbelError(f"A run's own recipe says what its federation is. Leave out {', '.join(sorted(options))}, or"
                         " the folder.")
    else:
        experiment = _of_run(run, options, settings)
    fed, auto = experiment.build(*experiment.draw(data_dir), workers=workers or cores())
    assert isinstance(auto, Auto)
    try:
        return diagnosed(fed, auto.for_run(experiment.rounds), experiment.rounds, trial)
    finally:
        fed.close()


def _of_run(run: Path, options: dict[str, Any], settings: dict[str, Any]) -> Experiment:
    """The federation of a run, its partition as it was drawn, with the run's local training."""
    seal = Sealed(run)
    table, own = dict(seal.recipe()), {each.name for each in fields(Local)}
    trained = {name: value for name, value in table.get("settings", {}).items() if name in own}
    table |= {"method": "auto", "settings": trained, "partition": str(seal.checked("partition.npz"))}
    table |= {"preparation": str(run / "preparation.json")} if seal.there("preparation.json") else {}
    return Experiment.from_table(table, run / "recipe.toml", **options, settings=settings).resolved()


def write(found: Diagnosis, out: Path) -> None:
    """A page or a file of JSON, by its ending."""
    if out.suffix == ".json":
        found.save(out)
    else:
        from umbel.pages.write import write_diagnosis  # brings what draws pages

        write_diagnosis(found, out)


def writable(out: Path | None) -> None:
    """Refuse another ending before anything is asked of anybody."""
    if out is not None and out.suffix not in (".json", ".html"):
        raise UmbelError(f"A diagnosis is written to FILE.html or FILE.json. Got '{out}' instead.")
