"""`umbel diagnose`."""

from pathlib import Path
from typing import Annotated

import typer

from umbel.cli.base import app, console, say
from umbel.cli.options import (
    Batch,
    Categories,
    ClassWeights,
    ClientColumn,
    Clients,
    Data,
    DataDir,
    Device,
    Drop,
    Engine,
    Epochs,
    Goal,
    MetricName,
    ModelName,
    Normalise,
    Optimiser,
    Partition,
    Precision,
    PreparationFile,
    Rate,
    Rounds,
    Scaling,
    Scenario,
    Schedule,
    Seed,
    Setting,
    Shuffle,
    Split,
    TargetColumn,
    TestMode,
    TestShare,
    Workers,
    of_run,
)


@app.command()
def diagnose(
    run: Annotated[Path | None, typer.Argument(hidden=True)] = None,
    data: Data = None, client_column: ClientColumn = None, target_column: TargetColumn = None, drop: Drop = None,
    categories: Categories = None, split: Split = None, test_share: TestShare = None, scaling: Scaling = None,
    preparation: PreparationFile = None, data_dir: DataDir = None, scenario: Scenario = None,
    partition: Partition = None, clients: Clients = None, test_mode: TestMode = None, shuffle: Shuffle = None,
    model: ModelName = None, objective: Goal = None, metric: MetricName = None, class_weights: ClassWeights = None,
    normalise: Normalise = None, rounds: Rounds = None, epochs: Epochs = None, batch: Batch = None, lr: Rate = None,
    optimiser: Optimiser = None, schedule: Schedule = None, seed: Seed = None, engine: Engine = None,
    device: Device = None, precision: Precision = None, workers: Workers = None, setting: Setting = None,
    trial: Annotated[bool, of_run("--trial/--no-trial", help="Try plans where clients differ, in a tenth of the"
                                                             " rounds.")] = True,
    as_json: Annotated[bool, of_run("--json", help="Print JSON instead of tables.")] = False,
    out: Annotated[Path | None, of_run(help="Write the diagnosis here: FILE.html, a page, or FILE.json.")] = None,
) -> None:
    """Should I cluster, how, and what is it worth? What clients differ in, and a short trial of what could be trained.

    Clients are described by few numbers of their rows; then one model, clusters and everybody alone are tried in a
    tenth of --rounds, the length of the run that is planned, and judged by validation rows.

    RUN is the folder of a run, whose federation is diagnosed instead of one that is typed.

    Example: umbel diagnose --data digits --scenario rotation-4 --clients 12
    """
    typed = locals()
    from umbel.cli import diagnoses
    from umbel.diagnosis import screen

    diagnoses.writable(out)
    found = diagnoses.of(**{name: value for name, value in typed.items() if name not in ("as_json", "out")})
    if out is not None:
        diagnoses.write(found, out)
    if as_json:
        import json

        say(json.dumps(found.info, indent=2))
        return
    screen.show(found, console)
    if out is not None:
        say(f"Written: {out}")


