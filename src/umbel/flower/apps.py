"""Your own sites as a federation on Flower: an app for the server, an app for every site.

    app = umbel.flower.server_app()              # server_app.py
    app = umbel.flower.client_app(load_data)     # client_app.py: load_data(context) -> (x, y), (x_test, y_test) or None

What is run stands in Flower's run-config (`flwr run . deploy -c 'method="pacfl" rounds=10'`); `CONFIG` has every key.
The run folder is on the server. A run that was interrupted goes on in a new Flower run with `resume="<run folder>"`.
"""

import itertools
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from rich.console import Console

from umbel.data.prepare import Preparation
from umbel.data.scenarios import MOST
from umbel.errors import UmbelError, unknown
from umbel.federation.uplink import parse
from umbel.fields import bounded, bounded_real
from umbel.files import make_folder
from umbel.flower.client import LoadData, node_app, site_of
from umbel.flower.roster import ROSTER, Sites
from umbel.flower.server import Clock, Patience
from umbel.nets import MODELS
from umbel.nets.model import Model
from umbel.nets.wrap import build
from umbel.runs import screen
from umbel.runs.checkpoint import RunFolder
from umbel.runs.experiment import Experiment
from umbel.runs.run import Round
from umbel.runs.sealed import Sealed
from umbel.runs.session import Session, describe

if TYPE_CHECKING:
    from umbel.diagnosis.diagnose import Diagnosis

__all__ = ["CONFIG", "Patience", "client_app", "server_app", "table_model"]

LONGEST_WAIT = 10_000_000  # seconds: four months

CONFIG: dict[str, str | bool | int | float] = {
    "method": "pacfl",
    "settings": "",  # of the method and its training, as in "rank=3 cut=gap lr=0.05 epochs=5"
    "rounds": 10,
    "fraction": 1.0,
    "seed": 0,
    "eval-every": 1,
    "fine-tune": 0,  # epochs of fine-tuning before the last evaluation
    "uplink": "",  # what answers pass on their way out of a site, as in "topk:0.1+quantise:8"
    "bound": 10.0,  # how many times as long as usual an update may be and count; 0 = any length
    "model": "mlp",  # a registered name; with a model of your own, give both apps model=...
    "shape": "1x28x28",  # of one image: channels x height x width
    "classes": 10,
    "mean": 0.0,  # images are scaled to [0, 1], then by these
    "std": 1.0,
    "min-nodes": 2,  # the run begins when so many are connected
    "wait": 600.0,  # seconds to wait for them
    **Patience()._asdict(),
    "diagnose": False,  # no run: what do sites differ in, and what are one model, clusters and each alone worth?
    "out": "",  # the run folder; by default a new one in ~/umbel-runs, named by method and Flower's number of the run
    "resume": "",  # a run folder to continue: method, model and rounds are then those of its recipe
}
"""What a run-config may say, with its defaults. An app's own pyproject.toml must list what it wants to change."""


def client_app(load_data: LoadData, model: Model | None = None) -> ClientApp:
    """The app of a site: its data, and its model if that is not one of `umbel list models`.

    A node is configured by the site: `name` (required), `memory-dir`, `policy`, `audit`, `device`, `ordered`, and
    whatever `load_data` reads.
    """
    return node_app(lambda context: site_of(context, load_data, model or model_of(_config(context.run_config))))


def server_app(model: Model | None = None) -> ServerApp:
    """The app of the server."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        console = Console(width=120, highlight=False)
        try:
            begin = diagnose if _config(context.run_config)["diagnose"] else play
            begin(grid, context.run_config, str(context.run_id), console, model)
        except UmbelError as error:
            console.print(f"Error: {error}", markup=False, soft_wrap=True)
            raise

    return app


def model_of(config: Mapping[str, Any]) -> Model:
    """The registered model that a run-config describes: the same on both sides."""
    try:
        shape = tuple(int(side) for side in str(config["shape"]).split("x"))
    except ValueError:
        raise UmbelError(f"A shape is written as in 1x28x28. Got '{config['shape']}' instead.") from None
    for side in shape:
        bounded(side, "shape", "a model", ge=1, le=10_000)
    bounded_real(config["mean"], "mean", "a model")
    bounded_real(config["std"], "std", "a model", gt=0)
    if config["model"] not in list(MODELS):  # a server names it: no file of a site is imported by its word
        raise unknown("model", str(config["model"]), MODELS)
    return build(config["model"], shape, int(config["classes"]), (config["mean"],), (config["std"],))


def table_model(preparation: Preparation | str | Path, name: str = "mlp") -> Model:
    """The registered model of this name for rows that `umbel.read_site` prepared so: give it to both apps."""
    how = preparation if isinstance(preparation, Preparation) else Preparation.read(preparation)
    if how.objective is None:
        raise UmbelError("A preparation for a model must say what is learnt. This one names no objective.")
    return build(name, (len(how.inputs),), how.objective, levels=how.levels)


def _config(given: Mapping[str, Any]) -> dict[str, Any]:
    """A run-config over the defaults, each value of its default's type."""
    config: dict[str, Any] = dict(CONFIG)
    for name, default in CONFIG.items():
        value = given.get(name, default)
        if type(value) is not type(default) and not (type(default) is float and type(value) is int):
            raise UmbelError(f"The '{name}' of a run must be like {default!r}. Got {value!r} instead.")
        config[name] = type(default)(value)
    return config


def play(grid: Grid, run_config: Mapping[str, Any], number: str, console: Console, model: Model | None = None,
         clock: Clock | None = None) -> Session:
    """Run to the end, from the start or from a checkpoint; every round is on disk before the next begins."""
    config = _config(run_config)
    session = (_resumed if config["resume"] else _begun)(grid, config, number, model, clock)
    console.print(f"Run folder: {session.folder.path}", soft_wrap=True)
    try:
        _wait_for_nodes(session.fed, config)
        before: dict[str, int] = {}
        for done in screen.follow(session, console, session.algorithm.name):
            before = _print_changes(done, session.fed.names, before, console)
        info = session.finish().info
    except BaseException:
        session.folder.close()
        raise
    console.print(screen.result_table(info))
    for line in screen.result_lines(info):
        console.print(line, soft_wrap=True)
    return session


def diagnose(grid: Grid, run_config: Mapping[str, Any], number: str, console: Console, model: Model | None = None,
             clock: Clock | None = None) -> "Diagnosis":
    """Ask the sites in what they differ, and try what could be trained; a page and JSON stay on the server.

    The run that is planned is `auto`'s, with the `settings` and `rounds` of the run-config.
    """
    from umbel.algorithms.auto import Auto  # sites, who start anew for every message, do without these
    from umbel.diagnosis import screen as shown
    from umbel.diagnosis.diagnose import diagnosed
    from umbel.pages.write import write_diagnosis

    config = _config(run_config) | {"method": "auto"}
    experiment = _experiment(config)
    auto = experiment.algorithm().for_run(experiment.rounds)
    assert isinstance(auto, Auto)
    path = Path(config["out"] or Path.home() / "umbel-diagnoses" / number).expanduser().absolute()
    if (path / "diagnosis.json").exists():
        raise UmbelError(f"There is a diagnosis in {path}: choose another out.")
    make_folder(path)
    fed = Sites(path, model or model_of(config), grid, experiment.seed, secrets.token_hex(8),
                patience=_patience(config), clock=clock, plan=plan_of(experiment))
    fed.uplinks, fed.bound = parse(experiment.uplink), experiment.bound
    _wait_for_nodes(fed, config)
    found = diagnosed(fed, auto, experiment.rounds)
    found.save(path / "diagnosis.json")
    shown.show(found, console)
    console.print(f"Written: {path / 'diagnosis.json'}", soft_wrap=True)
    with suppress(UmbelError):  # what draws pages is an extra
        console.print(f"Written: {write_diagnosis(found, path / 'diagnosis.html')}", soft_wrap=True)
    return found


def _print_changes(done: Round, names: list[str], before: dict[str, int], console: Console) -> dict[str, int]:
    """Print who is in which cluster, where that has changed; the answer is the new state of it."""
    now = dict(zip(names, done.state.labels.tolist(), strict=True))
    if now != before:
        members = {label: [name for name, own in now.items() if own == label] for label in sorted(set(now.values()))}
        for label, inside in members.items():
            title = "not placed yet" if label < 0 else f"cluster {label}"
            console.print(f"  {title}: {', '.join(inside)}", soft_wrap=True)
    return now


IN_RECIPE = ("method", "rounds", "fraction", "seed", "eval_every", "fine_tune", "uplink", "bound",
             "settings")  # of an Experiment


def _experiment(config: dict[str, Any]) -> Experiment:
    return Experiment(engine="flower", settings=_settings(config["settings"]),
                      **{name: config[name.replace("_", "-")] for name in IN_RECIPE if name != "settings"})


def _begun(grid: Grid, config: dict[str, Any], number: str, model: Model | None, clock: Clock | None) -> Session:
    experiment = _experiment(config)
    if experiment.algorithm().needs_truth:
        raise UmbelError(f"The method '{experiment.method}' needs the true groups, and those of sites are not known.")
    net = model or model_of(config)
    about = {name: config[name] for name in ("model", "shape", "classes", "mean", "std")} if model is None else {}
    path = Path(config["out"] or Path.home() / "umbel-runs" / f"{experiment.method}-{number}").expanduser().absolute()
    recipe = {name: value for name, value in asdict(experiment).items() if name in IN_RECIPE}
    folder = RunFolder.create(path, {"data": "own", "engine": "flower", **about, **recipe})
    fed = Sites(path, net, grid, experiment.seed, secrets.token_hex(8), patience=_patience(config), clock=clock,
                plan=plan_of(experiment))
    fed.write_down()
    describe(folder, fed)
    return Session(fed, experiment.algorithm(), experiment.options, folder)


def _resumed(grid: Grid, config: dict[str, Any], number: str, model: Model | None, clock: Clock | None) -> Session:
    path = Path(config["resume"]).expanduser().absolute()
    folder = RunFolder.open(path)
    try:
        recipe = Sealed(path).recipe()
        if recipe.get("data") != "own" or not (path / ROSTER).exists():
            raise UmbelError(f"The run in {path} was not run on sites: resume it with umbel run --resume.")
        if (path / "result.json").exists():
            raise UmbelError(f"The run in {path} is finished: there is nothing to resume.")
        experiment = Experiment(engine="flower", **{name: recipe[name] for name in IN_RECIPE if name in recipe})
        net = model or model_of(recipe)
        fed = Sites.again(path, net, grid, experiment.seed, patience=_patience(config), clock=clock,
                          plan=plan_of(experiment))
        describe(folder, fed)
        saved = folder.load(experiment.algorithm().state)
    except BaseException:
        folder.close()
        raise
    return Session(fed, experiment.algorithm(), experiment.options, folder, saved)


def plan_of(experiment: Experiment) -> dict[str, Any]:
    """What a run will ask of sites, as far as it is known beforehand: their policies are held against it."""
    algorithm = experiment.algorithm()
    epochs = [algorithm.local.epochs, getattr(algorithm, "gradient_epochs", 0), experiment.fine_tune or 0]
    rank = {"rank": algorithm.rank} if hasattr(algorithm, "rank") else {}
    return {"method": experiment.method, "epochs": max(epochs), "rows": algorithm.local.rows,
            "uplinks": experiment.uplink, "tells": list(algorithm.tells), **rank}


def _settings(text: str) -> dict[str, str]:
    pairs = [pair.partition("=") for pair in text.replace(",", " ").split()]
    for name, sign, value in pairs:
        if not (name and sign and value):
            raise UmbelError(f"Settings are written as in \"rank=3 lr=0.05\". Got '{text}' instead.")
    return {name: value for name, _, value in pairs}


def _patience(config: dict[str, Any]) -> Patience:
    rules = {name: {"gt": 0, "le": LONGEST_WAIT} for name in Patience._fields}
    rules |= {"quorum": {"gt": 0, "le": 1}, "grace": {"ge": 0, "le": LONGEST_WAIT}}
    return Patience(**{name: bounded_real(config[name], name, "a server", **rule) for name, rule in rules.items()})


def _wait_for_nodes(fed: Any, config: dict[str, Any]) -> None:
    wait = bounded_real(config["wait"], "wait", "a server", ge=0, le=LONGEST_WAIT)
    bounded(config["min-nodes"], "min-nodes", "a server", ge=1, le=MOST)
    end = fed.clock.now() + wait
    for tries in itertools.count(1):
        fed.arrive(0)
        there = int(fed.online.sum())
        if there >= config["min-nodes"]:
            return
        if there < config["min-nodes"] <= there + len(fed.forbidden):  # waiting changes no policy
            raise UmbelError(f"The run begins with {config['min-nodes']} nodes, and {len(fed.forbidden)} of those that"
                             f" are connected refuse it: {' '.join(sorted(set(fed.forbidden.values())))}")
        if fed.clock.now() >= end:
            raise UmbelError(f"After {config['wait']:g} s there are {there} nodes of the {config['min-nodes']} with"
                             " which the run begins: start more, or lower min-nodes.")
        fed.clock.sleep(1.0)
        if tries % 30 == 0:  # a site that was refused may have been set right by now
            fed.forgive()
