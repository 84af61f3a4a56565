"""The command line: `umbel run`, `umbel compare`, `umbel list`."""

import os
import re
import shlex
import sys
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from umbel import compare as comparison
from umbel import newcomer, screen
from umbel.algorithms import ALGORITHMS, Algorithm
from umbel.checkpoint import read_json, to_bytes, write_atomically
from umbel.data import scenarios
from umbel.data.sources import DATASETS
from umbel.errors import UmbelError, unknown
from umbel.experiment import Experiment
from umbel.models import MODELS
from umbel.recipe import settable
from umbel.result import versions
from umbel.run import Session, same_recipe

app = typer.Typer(
    help="Clustered federated learning: which clients belong together, and one model per group.",
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
)
console = Console()

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
Engine = Annotated[str | None, _of_run(help="simulator, or loop for debugging. Default: simulator.")]
Device = Annotated[str | None, _of_run(help="auto, cpu or cuda. Default: auto.")]
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
    device: Device = None, workers: Workers = None, eval_every: EvalEvery = None, average_last: AverageLast = None,
    fine_tune: FineTune = None, setting: Setting = None, out: Out = None,
    resume: Annotated[bool, _of_run("--resume", help="Go on with the run in --out where it stopped.")] = False,
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
    if experiment is None and (options or settings):
        raise UmbelError("With --resume and no method the folder's own recipe holds. Leave the other options out.")
    if resume:
        folder = _to_resume(experiment, out)
        if (folder / "result.json").exists():
            same_recipe(folder, experiment)
            _say(f"This run is finished already: {folder}")
            return _show(read_json(folder / "result.json"), folder)
        session = Session.resume(folder, experiment, data_dir)
    else:
        assert experiment is not None
        session = Session.start(experiment, out or _free_folder(_name(experiment)), data_dir)
    session.fed.workers = workers or _cores()
    again = ["umbel", "run", "--resume", "--out", str(session.folder.path)]
    again += ["--data-dir", str(data_dir)] if data_dir else []
    _play(session, session.experiment.method, quiet, f"Go on with: {shlex.join(again)}")
    _show(read_json(session.folder.path / "result.json"), session.folder.path)


@app.command()
def compare(
    methods: Annotated[list[str], typer.Argument(hidden=True)],
    data: Data = None, data_dir: DataDir = None, scenario: Scenario = None, clients: Clients = None,
    test_mode: TestMode = None, shuffle: Shuffle = None, join: Join = None, leave: Leave = None,
    model: ModelName = None, normalise: Normalise = None, rounds: Rounds = None, fraction: Fraction = None,
    epochs: Epochs = None, batch: Batch = None, lr: Rate = None, seed: Seed = None,
    seeds: Annotated[int, _of_run(min=1, help="How many seeds, from --seed on.")] = 1,
    engine: Engine = None, device: Device = None, workers: Workers = None, eval_every: EvalEvery = None,
    average_last: AverageLast = None,
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
    for session in comparison.sessions(plan, folder, data_dir):
        session.fed.workers = workers or _cores()
        _play(session, f"{session.experiment.method:{width}} seed {session.experiment.seed}", quiet, again)
    lines = comparison.table(folder, plan)
    comparison.write(folder, lines)
    resolved = plan[0].resolved()
    data_name = [resolved.data] if resolved.data else []
    title = [*data_name, resolved.scenario, f"{resolved.clients} clients", f"rounds: {resolved.rounds}"]
    console.print()
    console.print(screen.compare_table(lines, ", ".join(title)))
    _say(f"Runs, compare.json and compare.csv: {folder}")


@app.command()
def admit(
    run: Annotated[Path, typer.Argument(hidden=True)],
    file: Annotated[Path, typer.Argument(hidden=True)],
    name: Annotated[str | None, typer.Option(help="Name of the newcomer. Default: the file's.")] = None,
    fine_tune: Annotated[int, typer.Option(min=0, help="Epochs of training on its rows before it is used.")] = 0,
    save: Annotated[Path | None, typer.Option(help="Write its model here, as safetensors.")] = None,
) -> None:
    """Place a new client in a finished run: the cluster it belongs to, and its model.

    RUN is a run folder, FILE an npz with x_train and y_train, and x_test and y_test if there are test rows; images are
    uint8. The run folder stays as it was.

    Example: umbel admit runs/pacfl-digits-rotation-4-s0 client.npz --fine-tune 5 --save model.safetensors
    """
    placed = newcomer.admit(run, file, name, fine_tune)
    if placed.members:
        _say(f"{placed.name} joins cluster {placed.cluster}, which has {placed.members} clients.")
    else:
        _say(f"{placed.name} is like nobody: it founds cluster {placed.cluster}, and starts from the first model.")
    if placed.accuracy is not None:
        tuned = "" if placed.fine_tuned is None else f", {100 * placed.fine_tuned:.2f} % after {fine_tune} epochs"
        _say(f"Accuracy on its test rows: {100 * placed.accuracy:.2f} % with the cluster's model{tuned}.")
    if save is not None:
        write_atomically(save, to_bytes(placed.model))
        _say(f"Model: {save}")


@app.command("list")
def list_(
    what: Annotated[str, typer.Argument(hidden=True)],
) -> None:
    """Show what there is. WHAT is methods, data, scenarios, models or recipes."""
    if what not in _LISTS:
        raise unknown("list of", what, _LISTS)
    headers, rows = _LISTS[what]()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for header in headers:
        table.add_column(header, overflow="fold")
    for row in rows:
        table.add_row(*row)
    console.print(table, highlight=False)


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
) -> None:
    if version:
        console.print(f"umbel {versions()['umbel']}", highlight=False)
        raise typer.Exit


def main() -> None:
    """Entry point: a wrong input is one sentence and exit code 2. An interruption is 130, here and in typer."""
    try:
        app(prog_name="umbel")
    except UmbelError as error:
        _fail(str(error), 2)
    except OSError as error:
        _fail(f"{error.filename or 'A file'} cannot be read or written: {error.strerror or error}.", 2)


def _fail(sentence: str, code: int) -> None:
    mark = "[bold red]Error:[/bold red] " if code == 2 else ""
    Console(stderr=True).print(f"{mark}{escape(sentence)}", highlight=False, soft_wrap=True)
    sys.exit(code)


def _say(sentence: str) -> None:
    """One line as it is, however long: it may hold a path to be copied."""
    console.print(sentence, highlight=False, markup=False, soft_wrap=True)


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


def _cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _play(session: Session, name: str, quiet: bool, again: str) -> None:
    """Run a session to its end; Ctrl-C keeps the checkpoint and says how to go on."""
    try:
        for _ in screen.follow(session, console, name, quiet):
            pass
        session.finish()
    except KeyboardInterrupt:
        session.fed.close()
        done = session.saved.round + 1 if session.saved else 0
        _fail(f"Interrupted after {done} of {session.total} rounds. {again}", 130)


def _show(info: dict[str, Any], folder: Path) -> None:
    console.print()
    console.print(screen.result_table(info))
    for line in screen.result_lines(info):
        console.print(line, highlight=False)
    _say(f"Run folder: {folder}")


def _methods() -> tuple[list[str], list[list[str]]]:
    def idea(kind: type[Algorithm]) -> str:
        """The sentence that its file opens with, without the name before the colon."""
        first = (sys.modules[kind.__module__].__doc__ or "").split("\n\n")[0].splitlines()[0]
        return first.partition(": ")[2] or first

    return ["method", "what it is", "settings"], [
        [name, idea(kind), ", ".join(settable(kind))] for name, kind in ALGORITHMS.items()
    ]


def _data() -> tuple[list[str], list[list[str]]]:
    return ["data", "what it is", "training / test rows", "shape", "classes"], [
        [name, each.title, f"{each.train:,} / {each.test:,}", "×".join(map(str, each.shape)), str(each.classes)]
        for name, each in DATASETS.items()
    ]


def _scenarios() -> tuple[list[str], list[list[str]]]:
    def told(each: scenarios.Scenario) -> str:
        parameters = ", ".join(f"{key}={value.default:g}" for key, value in each.parameters.items())
        return f"{each.doc}[dim] ({parameters})" if parameters else each.doc

    return ["scenario", "clients", "test rows", "what it is (parameters)"], [
        [name, str(each.clients), each.test_mode, told(each)] for name, each in scenarios.SCENARIOS.items()
    ]


def _models() -> tuple[list[str], list[list[str]]]:
    return ["model", "what it is"], [[name, (make.__doc__ or "").splitlines()[0]] for name, make in MODELS.items()]


def _recipes() -> tuple[list[str], list[list[str]]]:
    found = sorted(Path("recipes").glob("*.toml"))
    if not found:
        raise UmbelError("Recipes are looked for in the folder 'recipes', and there are none here.")
    return ["recipe", "what it is"], [[str(path), path.read_text().split("\n")[0].lstrip("# ")] for path in found]


_LISTS = {"recipes": _recipes, "methods": _methods, "data": _data, "scenarios": _scenarios, "models": _models}

if __name__ == "__main__":
    main()
