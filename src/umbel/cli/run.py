"""`umbel run`, `compare` and `vary`: what can be typed. What is done then stands in `sessions`, which brings torch."""

from typing import Annotated

import typer

from umbel.cli import complete
from umbel.cli.base import app
from umbel.cli.options import (
    Attack,
    AverageLast,
    Batch,
    Bound,
    Categories,
    Change,
    ClassWeights,
    ClientColumn,
    Clients,
    Data,
    DataDir,
    Device,
    Drop,
    Engine,
    Epochs,
    EvalEvery,
    FineTune,
    Fraction,
    Goal,
    Join,
    Keep,
    Leave,
    MetricName,
    ModelName,
    Normalise,
    Optimiser,
    Out,
    Partition,
    Pooled,
    Precision,
    PreparationFile,
    Quiet,
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
    Trust,
    Uplink,
    WeightColumn,
    Workers,
    of_run,
    of_training,
)

# Arguments are hidden from their panel and described in the text: typer 0.20 with click 8.5 loses their help.


@app.command()
def run(
    method: Annotated[str | None, typer.Argument(hidden=True, autocompletion=complete.methods)] = None,
    data: Data = None, client_column: ClientColumn = None, target_column: TargetColumn = None, drop: Drop = None,
    categories: Categories = None, split: Split = None, test_share: TestShare = None,
    weight_column: WeightColumn = None, scaling: Scaling = None,
    preparation: PreparationFile = None, data_dir: DataDir = None, scenario: Scenario = None,
    partition: Partition = None, clients: Clients = None, test_mode: TestMode = None, shuffle: Shuffle = None,
    pooled: Pooled = None, join: Join = None, leave: Leave = None, change: Change = None, attack: Attack = None,
    model: ModelName = None, objective: Goal = None, metric: MetricName = None, class_weights: ClassWeights = None,
    normalise: Normalise = None, rounds: Rounds = None, fraction: Fraction = None,
    epochs: Epochs = None, batch: Batch = None, lr: Rate = None, optimiser: Optimiser = None,
    schedule: Schedule = None, seed: Seed = None, engine: Engine = None, device: Device = None,
    precision: Precision = None, workers: Workers = None, eval_every: EvalEvery = None,
    average_last: AverageLast = None, fine_tune: FineTune = None, uplink: Uplink = None, bound: Bound = None,
    keep: Keep = None, setting: Setting = None, out: Out = None,
    resume: Annotated[bool, of_run("--resume", help="Go on with the run in --out where it stopped, or with --rounds"
                                                    " beyond its end.")] = False,
    trust: Trust = False, quiet: Quiet = False,
) -> None:
    """Run one method and keep the run in a folder.

    METHOD is a name (`umbel list methods`), one of your own, FILE.py:NAME, or a file, recipe.toml; options come on top
    of what the recipe says.

    Example: umbel run fedavg --data digits --scenario rotation-4 --clients 12

    With answers of a quarter of the bytes: umbel run fedavg --uplink quantise:8
    """
    typed = locals()
    from umbel.cli import sessions

    sessions.run(**typed)


@app.command()
def compare(
    methods: Annotated[list[str], typer.Argument(hidden=True, autocompletion=complete.methods)],
    data: Data = None, client_column: ClientColumn = None, target_column: TargetColumn = None, drop: Drop = None,
    categories: Categories = None, split: Split = None, test_share: TestShare = None,
    weight_column: WeightColumn = None, scaling: Scaling = None,
    preparation: PreparationFile = None, data_dir: DataDir = None, scenario: Scenario = None, clients: Clients = None,
    test_mode: TestMode = None, shuffle: Shuffle = None, join: Join = None, leave: Leave = None, change: Change = None,
    attack: Attack = None,
    model: ModelName = None, objective: Goal = None, metric: MetricName = None, class_weights: ClassWeights = None,
    normalise: Normalise = None, rounds: Rounds = None, fraction: Fraction = None,
    epochs: Epochs = None, batch: Batch = None, lr: Rate = None, optimiser: Optimiser = None,
    schedule: Schedule = None, seed: Seed = None,
    seeds: Annotated[int, of_run(min=1, help="How many seeds, from --seed on.")] = 1,
    engine: Engine = None, device: Device = None, precision: Precision = None, workers: Workers = None,
    eval_every: EvalEvery = None, average_last: AverageLast = None,
    fine_tune: FineTune = None, uplink: Uplink = None, bound: Bound = None, keep: Keep = None, setting: Setting = None,
    tune: Annotated[list[str] | None, of_training(
        metavar="NAME=VALUES", help="lr=0.01,0.1: each method takes its best value by validation rows.")] = None,
    equal: Annotated[str | None, of_run(
        help="Give all methods the same rounds (pre-training included), or the first one's steps or bytes.")] = None,
    out: Out = None, quiet: Quiet = False,
) -> None:
    """Run several methods on the same partitions, first weights, cohorts and batches; show them side by side.

    METHODS are names (`umbel list methods`) or your own, FILE.py:NAME. A --set for one of them alone is written
    METHOD.NAME=VALUE.

    An --out that holds runs of the same comparison, finished or stopped, is continued.

    Example: umbel compare fedavg fedprox oracle --scenario rotation-4 --clients 12 --seeds 3
    """
    typed = locals()
    from umbel.cli import sessions

    sessions.compare(**typed)


@app.command()
def vary(
    method: Annotated[str, typer.Argument(hidden=True, autocompletion=complete.methods)],
    over: Annotated[list[str] | None, of_training(
        metavar="NAME=VALUES", help="lr=0.01,0.1: a setting, a choice of the run (clients, fraction, model ...) or"
                                    " scenario.alpha, and its values; several times for all combinations.")] = None,
    data: Data = None, client_column: ClientColumn = None, target_column: TargetColumn = None, drop: Drop = None,
    categories: Categories = None, split: Split = None, test_share: TestShare = None,
    weight_column: WeightColumn = None, scaling: Scaling = None,
    preparation: PreparationFile = None, data_dir: DataDir = None, scenario: Scenario = None,
    clients: Clients = None,
    test_mode: TestMode = None, shuffle: Shuffle = None, join: Join = None, leave: Leave = None, change: Change = None,
    attack: Attack = None,
    model: ModelName = None, objective: Goal = None, metric: MetricName = None, class_weights: ClassWeights = None,
    normalise: Normalise = None, rounds: Rounds = None, fraction: Fraction = None,
    epochs: Epochs = None, batch: Batch = None, lr: Rate = None, optimiser: Optimiser = None,
    schedule: Schedule = None, seed: Seed = None,
    seeds: Annotated[int, of_run(min=1, help="How many seeds, from --seed on.")] = 1,
    engine: Engine = None, device: Device = None, precision: Precision = None, workers: Workers = None,
    eval_every: EvalEvery = None, average_last: AverageLast = None, fine_tune: FineTune = None,
    uplink: Uplink = None, bound: Bound = None, keep: Keep = None, setting: Setting = None, out: Out = None,
    quiet: Quiet = False,
) -> None:
    """Run one method under all combinations of some settings; show what its score depends on.

    METHOD is a name (`umbel list methods`), one of your own, FILE.py:NAME, or a file, recipe.toml.

    An --out that holds runs of the same variation, finished or stopped, is continued.

    Example: umbel vary flag --over beta=0,0.5,1 --over lr=0.01,0.1 --scenario rotation-4 --clients 12
    """
    typed = locals()
    from umbel.cli import sessions

    sessions.vary(**typed)
