"""What `umbel run`, `umbel compare` and `umbel vary` do."""

import re
import shlex
from pathlib import Path
from typing import Any

from umbel import plugins
from umbel.cli.base import Stopped, complain, console, cores, fail, say, undisturbed
from umbel.errors import UmbelError
from umbel.runs import compare as comparison
from umbel.runs import drawn, screen
from umbel.runs import vary as variation
from umbel.runs.experiment import Experiment
from umbel.runs.recipe import read_toml
from umbel.runs.sealed import Sealed
from umbel.runs.series import Equal, Runs, sessions
from umbel.runs.session import Session, allow, same_recipe


def run(*, method: str | None, setting: list[str] | None, epochs: int | None, batch: int | None, lr: float | None,
        optimiser: str | None, schedule: str | None, data_dir: Path | None, workers: int | None, out: Path | None,
        resume: bool, trust: bool, quiet: bool, **choices: Any) -> None:
    """Start a run or go on with one. `choices` are fields of an Experiment, None where nothing was typed."""
    options = typed_options(choices)
    settings = typed_settings(setting, epochs=epochs, batch=batch, lr=lr, optimiser=optimiser, schedule=schedule)
    experiment = None if method is None else _experiment(method, options, settings, trust)
    if experiment is None and not (resume and out):
        raise UmbelError("Say which method to run, as in `umbel run fedavg`, or give --resume and --out.")
    if experiment is None and (set(options) - {"rounds"} or settings):
        raise UmbelError("With --resume and no method the folder's own recipe holds, all but --rounds. Leave the other"
                         " options out.")
    if resume:
        folder = _to_resume(experiment, out)
        if trust:
            allow(folder)
        more = options.get("rounds") if experiment is None else None
        nothing_asked = experiment is None and more is None
        if (folder / "result.json").exists() and (
                nothing_asked or more in (None, same_recipe(folder, experiment).rounds)):
            return _show(folder, f"This run is finished already: {folder}")
        session = Session.resume(folder, experiment, data_dir, more, workers or cores())
    else:
        assert experiment is not None
        session = Session.start(experiment, out or _free_folder(_name(experiment)), data_dir, workers or cores())
    _say_understood(session, quiet)
    again = ["umbel", "run", "--resume", "--out", str(session.folder.path)]
    again += ["--data-dir", str(data_dir)] if data_dir else []
    again += ["--trust"] if "plugins" in Sealed(session.folder.path).recipe() else []
    if not quiet:
        _say_drawn(session)
    _play(session, session.algorithm.name, quiet, f"Go on with: {shlex.join(again)}")
    _show(session.folder.path)


def compare(*, methods: list[str], seeds: int, setting: list[str] | None, epochs: int | None, batch: int | None,
            lr: float | None, optimiser: str | None, schedule: str | None, data_dir: Path | None, workers: int | None,
            out: Path | None, tune: list[str] | None, equal: str | None, quiet: bool, **choices: Any) -> None:
    """Run the methods, as far as they were not run, and show the table. `choices` are fields of an Experiment."""
    common = Experiment(**typed_options(choices))
    settings = typed_settings(setting, epochs=epochs, batch=batch, lr=lr, optimiser=optimiser, schedule=schedule)
    plan = comparison.planned(methods, common, settings, seeds, tune or [], equal or "")
    folder = out or _free_folder(f"compare-{_name(common, method=False)}")
    again = f"Go on with the same command and --out {shlex.quote(str(folder))}"
    _play_all(plan.runs, folder, data_dir, workers, quiet, again, plan.equal)
    lines = comparison.table(folder, plan)
    comparison.write(folder, lines)
    console.print()
    console.print(screen.compare_table(lines, _title(common), equal or ""))
    say(f"Runs, compare.json and compare.csv: {folder}")


def vary(*, method: str, over: list[str] | None, seeds: int, setting: list[str] | None, epochs: int | None,
         batch: int | None, lr: float | None, optimiser: str | None, schedule: str | None, data_dir: Path | None,
         workers: int | None, out: Path | None, quiet: bool, **choices: Any) -> None:
    """Run the combinations, as far as they were not run, and show the table and the page."""
    settings = typed_settings(setting, epochs=epochs, batch=batch, lr=lr, optimiser=optimiser, schedule=schedule)
    common = _experiment(method, typed_options(choices), settings, trust=False)
    plan = variation.planned(common, over or [], seeds)
    folder = out or _free_folder(f"vary-{_name(common)}")
    again = f"Go on with the same command and --out {shlex.quote(str(folder))}"
    _play_all(plan.runs, folder, data_dir, workers, quiet, again)
    lines = variation.table(folder, plan)
    variation.write(folder, lines)
    console.print()
    console.print(screen.vary_table(lines, f"{lines[0]['method']} on {_title(common)}"))
    say(f"Runs, vary.json and vary.csv: {folder}. A page of them: umbel report {shlex.quote(str(folder))}")


def _play_all(runs: Runs, folder: Path, data_dir: Path | None, workers: int | None, quiet: bool, again: str,
              equal: Equal | None = None) -> None:
    """The runs of a series that are still to do."""
    width = max(len(name.rpartition("-s")[0]) for name in runs)
    told: set[str | None] = set()
    for k, session in enumerate(sessions(runs, folder, data_dir, workers or cores(), equal)):
        _say_understood(session, quiet or k > 0)
        if not quiet and session.fed.provenance.partition_hash not in told:
            told.add(session.fed.provenance.partition_hash)
            _say_drawn(session)
        _play(session, f"{session.folder.path.name.rpartition('-s')[0]:{width}} seed {session.fed.seed}", quiet, again)


def _title(experiment: Experiment) -> str:
    """Data, scenario, clients and rounds."""
    resolved = experiment.resolved()
    data = [plugins.label(resolved.data)] if resolved.data else []
    clients = [f"{resolved.clients} clients"] if resolved.clients else []
    return ", ".join([*data, str(resolved.scenario), *clients, f"rounds: {resolved.rounds}"])


def _say_understood(session: Session, quiet: bool) -> None:
    """What was read of a table of one's own, before anything is learnt of it."""
    understood = (session.fed.provenance.scenario or {}).get("understood")
    if understood and not quiet:
        for line in screen.understood_lines(understood):
            say(line)


def typed_options(choices: dict[str, Any]) -> dict[str, Any]:
    """The options that were typed, as an Experiment takes them."""
    return {name: str(value) if isinstance(value, Path) else value for name, value in choices.items()
            if value is not None}


def typed_settings(pairs: list[str] | None, **shortcuts: Any) -> dict[str, Any]:
    """The settings of a method: NAME=VALUE, and those that have options of their own."""
    settings = {name: value for name, value in shortcuts.items() if value is not None}
    for pair in pairs or []:
        name, sign, value = pair.partition("=")
        if not (name and sign):
            raise UmbelError(f"A setting is written NAME=VALUE, as in --set mu=0.1. Got '{pair}' instead.")
        settings[name.strip()] = value.strip()
    return settings


def _experiment(method: str, options: dict[str, Any], settings: dict[str, Any], trust: bool) -> Experiment:
    if method.endswith(".toml"):
        if trust:
            plugins.allow(read_toml(Path(method), follow=True), Path(method).parent)
        return Experiment.from_toml(Path(method), **options, settings=settings)
    return Experiment(method=method, **options, settings=settings)


def _name(experiment: Experiment, method: bool = True) -> str:
    """`fedavg-digits-rotation-4-s0`; the same experiment has the same name."""
    resolved = experiment.resolved()
    parts = [plugins.label(resolved.method)] if method else []
    parts += [Path(plugins.label(resolved.data)).name] if resolved.data else []
    return re.sub(r"[^\w.-]+", "_", "-".join([*parts, str(resolved.scenario), f"s{resolved.seed}"]))


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


def _say_drawn(session: Session) -> None:
    """What was drawn, before the first round; a warning where clients have too little of it."""
    for sentence in drawn.said(session.fed):
        say(sentence)
    for sentence in drawn.warnings(session.fed, session.algorithm.local.batch):
        complain(sentence, "[bold yellow]Warning:[/bold yellow] ")


def _play(session: Session, name: str, quiet: bool, again: str) -> None:
    """Run a session to its end; whatever ends it keeps the checkpoint, and a signal's end says how to go on."""
    try:
        for _ in screen.follow(session, console, name, quiet):
            pass
        session.finish()
    except Stopped as end:
        undisturbed()
        session.close()
        done = session.saved.round + 1 if session.saved else 0
        fail(f"Interrupted after {done} of {session.total} rounds. {again}", end.code)
    except BaseException:
        session.close()
        raise


def _show(folder: Path, first: str = "") -> None:
    info = Sealed(folder).result()
    if first:
        say(first)
    console.print()
    console.print(screen.result_table(info))
    for line in screen.result_lines(info):
        say(line)
    say(f"Run folder: {folder}")
