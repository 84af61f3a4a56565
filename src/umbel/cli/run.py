"""`umbel run` and `umbel compare`."""

import re
import shlex
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from umbel.cli.base import app, console, cores, fail, say
from umbel.errors import UmbelError
from umbel.nets.networks import MODELS
from umbel.runs import compare as comparison
from umbel.runs import screen
from umbel.runs.checkpoint import read_json
from umbel.runs.experiment import Experiment
from umbel.runs.session import Session, same_recipe

_of_data = partial(typer.Option, rich_help_panel="Data")
_of_training = partial(typer.Option, rich_help_panel="Training")
_of_run = partial(typer.Option, rich_help_panel="Run")

Data = Annotated[str | None, _of_data(help="Data set; `umbel list data`. Default: digits.")]
DataDir = Annotated[Path | None, _of_data(envvar="UMBEL_DATA", help="Folder with data sets.")]
Scenario = Annotated[str | None, _of_data(
    help="Who holds what: NAME, NAME:param=value,..., or two joined by +; `umbel list scenarios`. Default: iid.")]
Partition = Annotated[Path | None, _of_data(help="A partition.npz of an earlier run, instead of drawing one.")]
Clients = Annotated[int | None, _of_data(help="How many clients; by default the scenario's own number.")]
TestMode = Annotated[str | None, _of_data(help="Local test sets: label_full, matched or holdout.")]
Shuffle = Annotated[bool | None, _of_data("--shuffle", help="Shuffle clients: late ones come from all groups.")]
Pooled = Annotated[bool | None, _of_data("--pooled", help="One client per true group, with all its data.")]
Join = Annotated[str | None, _of_data(help="20@50: the last 20 clients appear at round 50.")]
Leave = Annotated[str | None, _of_data(help="5@30: the first 5 clients are gone from round 30 on.")]
ModelName = Annotated[str | None, _of_training(
    "--model", help=f"{', '.join(MODELS)}. Default: mlp for digits, lenet5 for others.")]
Normalise = Annotated[bool | None, _of_training(help="Scale inputs by the data set's mean and std; not for mlp.")]
Rounds = Annotated[int | None, _of_training(help="Rounds, after a method's own pre-training. Default: 20.")]
Fraction = Annotated[float | None, _of_training(help="Share of the clients asked in a round. Default: 1.")]
Epochs = Annotated[int | None, _of_training(help="Local epochs in a round. Default: 10.")]
Batch = Annotated[int | None, _of_training(help="Rows in a local batch; 0 = all. Default: 10.")]
Rate = Annotated[float | None, _of_training("--lr", help="Local learning rate. Default: 0.01.")]
Seed = Annotated[int | None, _of_run(help="Decides partition, first weights, cohorts and batches. Default: 0.")]
Engine = Annotated[str | None, _of_run(help="simulator; loop, for debugging; flower, on Ray. Default: simulator.")]
Device = Annotated[str | None, _of_run(help="auto, cpu or cuda. Default: auto.")]
Precision = Annotated[str | None, _of_run(
    help="float32, or faster and coarser: tf32 (GPU), bf16. Default: float32.")]
Workers = Annotated[int | None, _of_run(min=1, help="Processes for long training on a CPU. Default: one a core.")]
EvalEvery = Annotated[int | None, _of_run(help="Test every so many rounds. Default: 1.")]
AverageLast = Annotated[int | None, _of_run(help="Average the cluster model's accuracy over the last rounds.")]
FineTune = Annotated[int | None, _of_training(help="Epochs of fine-tuning at the end; 0 = none. Default: a round's.")]
Setting = Annotated[list[str] | None, _of_training(
    "--set", metavar="NAME=VALUE", help="A setting of the method; may be given several times.")]
Out = Annotated[Path | None, _of_run(help="The run folder. Default: a new one under runs/.")]
Quiet = Annotated[bool, _of_run("--quiet", "-q", help="Only the result.")]


# Arguments are hidden from their panel and told in the text: typer 0.20 with click 8.5 loses their help.


@app.command()
def run(
    method: Annotated[str | None, typer.Argument(hidden=True)] = None,
    data: Data = None, data_dir: DataDir = None, scenario: Scenario = None, partition: Partition = None,
    clients: Clients = None, test_mode: TestMode = None, shuffle: Shuffle = None, pooled: Pooled = None,
    join: Join = None, leave: Leave = None,
    model: ModelName = None, normalise: Normalise = None, rounds: Rounds = None, fraction: Fraction = None,
    epochs: Epochs = None, batch: Batch = None, lr: Rate = None, seed: Seed = None, engine: Engine = None,
    device: Device = None, precision: Precision = None, workers: Workers = None, eval_every: EvalEvery = None,
    average_last: AverageLast = None, fine_tune: FineTune = None, setting: Setting = None, out: Out = None,
    resume: Annotated[bool, _of_run("--resume", help="Go on with the run in --out where it stopped, or with --rounds"
                                                     " beyond its end.")] = False,
    quiet: Quiet = False,
) -> None:
    """Run one method and keep the run in a folder.

    METHOD is a name (`umbel list methods`) or a file, recipe.toml; options come on top of what the file says.

    Example: umbel run fedavg --data digits --scenario rotation-4 --clients 12
    """
    options = _given(locals())
    settings = _settings(setting, epochs=epochs, batch=batch, lr=lr)
    experiment = None if method is None else _experiment(method, options, settings)
    if experiment is None and not (resume and out):
        raise UmbelError("Say which method to run, as in `umbel run fedavg`, or give --resume and --out.")
    if experiment is None and (set(options) - {"rounds"} or settings):
        raise UmbelError("With --resume and no method the folder's own recipe holds, all but --rounds. Leave the other"
                         " options out.")
    if resume:
        folder = _to_resume(experiment, out)
        more = rounds if experiment is None else None
        if (folder / "result.json").exists() and more in (None, same_recipe(folder, experiment).rounds):
            say(f"This run is finished already: {folder}")
            return _show(read_json(folder / "result.json"), folder)
        session = Session.resume(folder, experiment, data_dir, more, workers or cores())
    else:
        assert experiment is not None
        session = Session.start(experiment, out or _free_folder(_name(experiment)), data_dir, workers or cores())
    again = ["umbel", "run", "--resume", "--out", str(session.folder.path)]
    again += ["--data-dir", str(data_dir)] if data_dir else []
    _play(session, session.algorithm.name, quiet, f"Go on with: {shlex.join(again)}")
    _show(read_json(session.folder.path / "result.json"), session.folder.path)


@app.command()
def compare(
    methods: Annotated[list[str], typer.Argument(hidden=True)],
    data: Data = None, data_dir: DataDir = None, scenario: Scenario = None, clients: Clients = None,
    test_mode: TestMode = None, shuffle: Shuffle = None, join: Join = None, leave: Leave = None,
    model: ModelName = None, normalise: Normalise = None, rounds: Rounds = None, fraction: Fraction = None,
    epochs: Epochs = None, batch: Batch = None, lr: Rate = None, seed: Seed = None,
    seeds: Annotated[int, _of_run(min=1, help="How many seeds, from --seed on.")] = 1,
    engine: Engine = None, device: Device = None, precision: Precision = None, workers: Workers = None,
    eval_every: EvalEvery = None, average_last: AverageLast = None,
    fine_tune: FineTune = None, setting: Setting = None, out: Out = None, quiet: Quiet = False,
) -> None:
    """Run several methods on the same partitions, first weights, cohorts and batches; show them side by side.

    METHODS are names; `umbel list methods`. A --set for one of them alone is written METHOD.NAME=VALUE.

    An --out that holds runs of the same comparison, finished or stopped, is gone on with.

    Example: umbel compare fedavg fedprox oracle --scenario rotation-4 --clients 12 --seeds 3
    """
    options = _given(locals())
    common = Experiment(**options)
    settings = _settings(setting, epochs=epochs, batch=batch, lr=lr)
    plan = comparison.experiments(methods, common, settings, seeds)
    folder = out or _free_folder(f"compare-{_name(common, method=False)}")
    again = f"Go on with the same command and --out {shlex.quote(str(folder))}"
    width = max(map(len, methods))
    for session in comparison.sessions(plan, folder, data_dir, workers or cores()):
        _play(session, f"{session.algorithm.name:{width}} seed {session.fed.seed}", quiet, again)
    lines = comparison.table(folder, plan)
    comparison.write(folder, lines)
    resolved = plan[0].resolved()
    data_name = [resolved.data] if resolved.data else []
    title = [*data_name, resolved.scenario, f"{resolved.clients} clients", f"rounds: {resolved.rounds}"]
    console.print()
    console.print(screen.compare_table(lines, ", ".join(title)))
    say(f"Runs, compare.json and compare.csv: {folder}")


_FIELDS = {each.name for each in fields(Experiment)} - {"method", "settings"}


def _given(options: dict[str, Any]) -> dict[str, Any]:
    """The options that were typed and are fields of an Experiment."""
    given = {name: value for name, value in options.items() if name in _FIELDS and value is not None}
    return {name: str(value) if isinstance(value, Path) else value for name, value in given.items()}


def _settings(pairs: list[str] | None, **shortcuts: Any) -> dict[str, Any]:
    settings = {name: value for name, value in shortcuts.items() if value is not None}
    for pair in pairs or []:
        name, sign, value = pair.partition("=")
        if not (name and sign):
            raise UmbelError(f"A setting is written NAME=VALUE, as in --set mu=0.1. Got '{pair}' instead.")
        settings[name.strip()] = value.strip()
    return settings


def _experiment(method: str, options: dict[str, Any], settings: dict[str, Any]) -> Experiment:
    if method.endswith(".toml"):
        return Experiment.from_toml(Path(method), **options, settings=settings)
    return Experiment(method=method, **options, settings=settings)


def _name(experiment: Experiment, method: bool = True) -> str:
    """`fedavg-digits-rotation-4-s0`; the same experiment has the same name."""
    resolved = experiment.resolved()
    parts = [resolved.method] if method else []
    parts += [resolved.data] if resolved.data else []
    return re.sub(r"[^\w.-]+", "_", "-".join([*parts, resolved.scenario, f"s{resolved.seed}"]))


def _folders(name: str) -> list[Path]:
    """runs/NAME, runs/NAME-2 ... as far as they are there."""
    numbered = [Path("runs") / (name if k == 1 else f"{name}-{k}") for k in range(1, 10_000)]
    return [path for path in numbered if path.exists()]


def _free_folder(name: str) -> Path:
    taken = set(_folders(name))
    return next(path for k in range(1, 10_000)
                if (path := Path("runs") / (name if k == 1 else f"{name}-{k}")) not in taken)


def _to_resume(experiment: Experiment | None, out: Path | None) -> Path:
    if out is not None:
        return out
    assert experiment is not None
    name = _name(experiment)
    unfinished = [path for path in _folders(name) if not (path / "result.json").exists()]
    if not unfinished:
        raise UmbelError(f"There is no unfinished run named {name} under runs/ to resume: name its folder with --out.")
    return unfinished[-1]


def _play(session: Session, name: str, quiet: bool, again: str) -> None:
    """Run a session to its end; Ctrl-C keeps the checkpoint and says how to go on."""
    try:
        for _ in screen.follow(session, console, name, quiet):
            pass
        session.finish()
    except KeyboardInterrupt:
        session.fed.close()
        done = session.saved.round + 1 if session.saved else 0
        fail(f"Interrupted after {done} of {session.total} rounds. {again}", 130)


def _show(info: dict[str, Any], folder: Path) -> None:
    console.print()
    console.print(screen.result_table(info))
    for line in screen.result_lines(info):
        console.print(line, highlight=False)
    say(f"Run folder: {folder}")
