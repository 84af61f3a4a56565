"""A run in a folder, which keeps every round that is handed out; and the verbs around it: run, resume, load."""

import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from umbel import plugins
from umbel.algorithms import ALGORITHMS
from umbel.algorithms.base import Algorithm
from umbel.data.plans import load_plan, plan_bytes
from umbel.data.prepare import Preparation
from umbel.errors import UmbelError, UmbelWarning
from umbel.federation.door import Federation
from umbel.federation.lengths import BOUND
from umbel.federation.provenance import Provenance
from umbel.federation.uplink import Uplink, written
from umbel.files import json_bytes
from umbel.nets import MODELS
from umbel.nets.model import Model
from umbel.nets.objective import GOALS, objective_of
from umbel.nets.wrap import build, wrap
from umbel.runs.checkpoint import RunFolder, Saved, last_saved
from umbel.runs.experiment import Experiment, Network, algorithm_of
from umbel.runs.kinds import hold
from umbel.runs.options import RunOptions
from umbel.runs.recipe import differing, flat, plain, settings_of
from umbel.runs.result import Result, environment, finish, recipe_of, versions
from umbel.runs.run import Round, best_of, better, rounds
from umbel.runs.schema import PREPARATION
from umbel.runs.sealed import Sealed

Watcher = Callable[[Round], Any]


@dataclass
class Session:
    """A run in a folder."""

    fed: Federation
    algorithm: Algorithm
    options: RunOptions
    folder: RunFolder
    saved: Saved | None = None
    enough: Callable[[Sequence[Mapping[str, Any]]], bool] | None = None  # whether the rounds so far are, by their lines

    @classmethod
    def begin(cls, fed: Federation, algorithm: Algorithm, options: RunOptions, out: Path) -> "Session":
        """A new folder for a federation and a method that are there already."""
        options.check_for(algorithm)
        folder = RunFolder.create(out, recipe_of(algorithm, fed.provenance, options))
        try:
            describe(folder, fed)
        except BaseException:
            folder.close()
            raise
        return cls(fed, algorithm, options, folder)

    @classmethod
    def start(cls, experiment: Experiment, out: Path, data_dir: Path | None = None, workers: int = 1) -> "Session":
        """Begin in a new folder. Nothing is written before data, partition and model are known to be good."""
        experiment.refuse_late()
        experiment = experiment.resolved()
        fed, algorithm = experiment.build(*experiment.draw(data_dir), workers=workers)
        return cls.begin(fed, algorithm, experiment.options, out)

    @classmethod
    def resume(cls, out: Path, experiment: Experiment | None = None, data_dir: Path | None = None,
               rounds: int | None = None, workers: int = 1) -> "Session":
        """Go on in a folder; an experiment, when given, must be the one that the folder holds.

        `rounds` is another number of them than the recipe's, even of a finished run; the result is then made anew.
        """
        folder = RunFolder.open(out)
        try:
            recipe = same_recipe(out, experiment)
            stored = replace(recipe, partition=_partition(out) or recipe.partition)
            fed, algorithm = recipe.build(*stored.draw(data_dir), workers=workers)
            return cls._go_on(fed, algorithm, recipe.options, folder, rounds)
        except BaseException:
            folder.close()
            raise

    @classmethod
    def resume_with(cls, out: Path, fed: Federation, algorithm: Algorithm | None = None,
                    rounds: int | None = None) -> "Session":
        """Go on in the folder of a run on data, with a model or by a method that no recipe can name."""
        folder = RunFolder.open(out)
        try:
            recipe = Sealed(out).recipe()
            algorithm = algorithm or algorithm_of(str(recipe.get("method")), recipe.get("settings", {}),
                                                  fed.provenance.truth or (), fed.provenance.truth_changes)
            options = RunOptions.of(recipe)
            own = {**plain(asdict(options)), **recipe}  # a folder may be older than an option
            asked = plain(recipe_of(algorithm, fed.provenance, options))
            refuse_other(out, _without_places(own), _without_places(asked))
            return cls._go_on(fed, algorithm, options, folder, rounds)
        except BaseException:
            folder.close()
            raise

    @classmethod
    def _go_on(cls, fed: Federation, algorithm: Algorithm, options: RunOptions, folder: RunFolder,
               rounds: int | None) -> "Session":
        describe(folder, fed)
        saved = folder.load(algorithm.state)
        if saved is not None:
            saved.check(fed.net, algorithm, len(fed.names), folder.path)
        if rounds is not None and rounds != options.rounds:
            if algorithm.local.ends_with_the_run:
                raise UmbelError(f"The run in {folder.path} follows the schedule '{algorithm.local.schedule}' over its"
                                 f" {options.rounds} rounds, and cannot have another number of them: start again with a"
                                 f" horizon (--set horizon={rounds}). Got {rounds} instead.")
            done = saved.round + 1 - algorithm.pretrain if saved else 0
            if rounds <= done:
                raise UmbelError(f"The run in {folder.path} has done {done} rounds already: it can go on to more of"
                                 f" them. Got {rounds} instead.")
            options = replace(options, rounds=rounds)
            options.check_for(algorithm)
            folder.change(recipe_of(algorithm, fed.provenance, options))
        return cls(fed, algorithm, options, folder, saved)

    @property
    def total(self) -> int:
        """Rounds in all, pre-training included."""
        return self.algorithm.pretrain + self.options.rounds

    def rounds(self) -> Iterator[Round]:
        """The rounds still to do, each in the folder's hands before it is handed out."""
        records = list(self.saved.records) if self.saved else []
        best = self.saved.best if self.saved else None
        best_record = best_of(records) if self.options.keep == "best" else None
        if self.enough is not None and records and self.enough(records):
            return
        for done in rounds(self.algorithm, self.fed, saved=self.saved, **asdict(self.options)):
            is_best = self.options.keep == "best" and better(done.record, best_record)
            best, best_record = (done.state, done.record) if is_best else (best, best_record)
            self.folder.commit(done.index, done.state, *self.fed.memory(), done.record, is_best,
                               wait=not self.fed.memory_is_here)
            records.append(done.record)
            self.saved = Saved(done.index, done.state, {}, {}, records, best)
            yield done
            if self.enough is not None and self.enough(records):
                return

    def finish(self) -> Result:
        """Write the result from what the folder holds, and let go of it."""
        if self.saved is None or self.saved.round < 0:
            raise UmbelError(f"The run in {self.folder.path} has done no round yet: there is no result to write.")
        result = finish(self.algorithm, self.fed, self.saved.kept, self.saved.records, self.options)
        if result.records[-1] is not self.saved.records[-1]:
            self.folder.change_last_line(result.records[-1])
        self.folder.finish(result.info, result.clusters, result.forecasts)
        self.close()
        return result

    def close(self) -> None:
        """Let go of the folder and of what the engine holds."""
        self.folder.close()
        self.fed.close()


def _without_places(recipe: dict[str, Any]) -> dict[str, Any]:
    """A recipe by the names of its objects: who gives the method and the model need not say where they lie."""
    names = {name: plugins.label(recipe[name]) for name in plugins.NAMED_IN if isinstance(recipe.get(name), str)}
    return {name: value for name, value in recipe.items() if name != "plugins"} | names


def describe(folder: RunFolder, fed: Federation) -> None:
    """Write once who holds what, on which machine, and what the network is; or check it against what the folder has."""
    plan, preparation = fed.provenance.plan, fed.provenance.preparation
    about = {"env.json": json_bytes(environment(fed)), "model.json": json_bytes(described(fed.net)),
             **({} if plan is None else {"partition.npz": plan_bytes(plan)}),
             **_prepared(preparation)}
    if other := folder.describe(about, fed.provenance.partition_hash, versions()):
        warnings.warn(f"{other} Go on, but bits may differ from those of a run that was not stopped.", UmbelWarning,
                      stacklevel=2)


def _prepared(how: Preparation | None) -> dict[str, bytes]:
    """preparation.json, as it is described, where rows were prepared."""
    if how is None:
        return {}
    content = how.json()
    hold(json.loads(content), PREPARATION, "the new preparation.json")
    return {"preparation.json": content}


def _partition(out: Path) -> str | None:
    """The partition that a run was begun with; before its first checkpoint it is drawn again."""
    seal = Sealed(out)
    return str(seal.checked("partition.npz")) if seal.checkpoint and seal.there("partition.npz") else None


def described(net: Model) -> dict[str, Any]:
    """What model.json holds: all that is needed to use the weights, beside the network's code."""
    return {"name": net.name, "shape": list(net.shape), "objective": net.objective.described(), "tokens": net.tokens,
            "levels": list(net.levels), "head": net.head,
            "mean": net.mean.flatten().tolist(), "std": net.std.flatten().tolist(), "parameters": net.parameters,
            "precision": net.precision}


def keep(result: Result, path: Path) -> Path:
    """Write a finished run into a new folder, as if it had been run there."""
    folder = RunFolder.create(path, recipe_of(result.algorithm, result.provenance, result.options))
    try:
        about = {"env.json": json_bytes({"versions": result.info["versions"]})}
        about |= {"model.json": json_bytes(described(result.net))} if result.net is not None else {}
        about |= {"partition.npz": plan_bytes(result.provenance.plan)} if result.provenance.plan is not None else {}
        about |= _prepared(result.provenance.preparation)
        folder.describe(about, result.provenance.partition_hash, result.info["versions"])
        for record in result.records[:-1]:
            folder.add_line(record)
        folder.commit(result.records[-1]["round"], result.state, result.memory, result.memory_rounds,
                      result.records[-1], best=result.options.keep == "best")
        folder.finish(result.info, result.clusters, result.forecasts)
    finally:
        folder.close()
    return path


def run(algorithm: Algorithm | str, fed: Federation, *, rounds: int, fraction: float = 1.0, eval_every: int = 1,
        average_last: int = 1, fine_tune: int | None = None, keep: str = "last",
        uplink: str | Sequence[Uplink] = "", bound: float = BOUND, progress: bool = False,
        out: str | Path | None = None, on_round: Watcher | None = None,
        stop: Callable[[Round], bool] | None = None) -> Result:
    """Run a method to its end and return what came of it.

    `algorithm` is a method, or the name of one with its defaults. `progress` shows a bar. `out` is a new folder in
    which every round is kept as it ends, so that `umbel.resume(out)` can go on after a kill; without it,
    `result.save(folder)` keeps the end. `on_round` is called after every round (a logger, say), and the run ends early
    when `stop(round)` is true. `keep="best"` keeps the round with the best validation score instead of the last.
    `uplink` is what answers pass on their way out of a client, as in "topk:0.1+quantise:8" (docs/uplinks.md).
    An update that is more than `bound` times as long as usual is not believed; 0 = any length is (docs/belief.md).
    """
    if isinstance(algorithm, str):
        algorithm = algorithm_of(algorithm, {}, fed.provenance.truth or (), fed.provenance.truth_changes)
    options = RunOptions(rounds, fraction, eval_every, average_last, fine_tune, keep,
                         uplink if isinstance(uplink, str) else written(uplink), bound)
    if out is not None:
        return play(Session.begin(fed, algorithm, options, Path(out)), progress, on_round, stop)
    return _in_memory(algorithm, fed, options, progress, on_round, stop)


def resume(folder: str | Path, *, fed: Federation | None = None, algorithm: Algorithm | None = None,
           rounds: int | None = None, data_dir: str | Path | None = None, progress: bool = False,
           on_round: Watcher | None = None, stop: Callable[[Round], bool] | None = None, trust: bool = False) -> Result:
    """Go on with the run in a folder, to the same end as if it had never stopped; a finished one is loaded.

    `rounds` prolongs it, finished or not. A run on your own data, model or method needs the same federation again
    (`fed`), and the method (`algorithm`) if it is not umbel's own. `trust` imports the files of code that its recipe
    names.
    """
    path = Path(folder)
    if trust:
        allow(path)
    if (path / "result.json").exists() and rounds in (None, Sealed(path).recipe().get("rounds")):
        return load(path, model=None if fed is None else fed.net.make, algorithm=algorithm)
    if fed is None:
        session = Session.resume(path, None, None if data_dir is None else Path(data_dir), rounds)
    else:
        session = Session.resume_with(path, fed, algorithm, rounds)
    return play(session, progress, on_round, stop)


def play(session: Session, progress: bool = False, on_round: Watcher | None = None,
         stop: Callable[[Round], bool] | None = None) -> Result:
    """A session to its end; its folder is let go of, whatever happens."""
    try:
        walk = _followed(session.rounds(), session.algorithm.name, session.total, session.fed, progress)
        for _ in _hooked(walk, on_round, stop):
            pass
        return session.finish()
    except BaseException:
        session.close()
        raise


def _in_memory(algorithm: Algorithm, fed: Federation, options: RunOptions, progress: bool, on_round: Watcher | None,
               stop: Callable[[Round], bool] | None) -> Result:
    records: list[dict[str, Any]] = []
    best: Round | None = None
    total = algorithm.pretrain + options.rounds
    walk = _followed(rounds(algorithm, fed, **asdict(options)), algorithm.name, total, fed, progress)
    for done in _hooked(walk, on_round, stop):
        records.append(done.record)
        last = done
        if options.keep == "best" and better(done.record, best.record if best else None):
            best = done
    return finish(algorithm, fed, (best or last).state, records, options)


def _hooked(walk: Iterator[Round], on_round: Watcher | None, stop: Callable[[Round], bool] | None) -> Iterator[Round]:
    """Hand rounds on until `stop` is true of one; hooks are called when whoever takes the round has kept it."""
    for done in walk:
        yield done
        if done.index < 0:  # what comes before the first round is none
            continue
        if on_round is not None:
            on_round(done)
        if stop is not None and stop(done):
            return


def _followed(walk: Iterator[Round], name: str, total: int, fed: Federation, progress: bool) -> Iterator[Round]:
    if not progress:
        return walk
    from rich.console import Console

    from umbel.runs import screen

    return screen.followed(walk, Console(), name, total, fed)


def allow(folder: Path) -> None:
    """Import the files of code that the recipe of a run names, unless one of them was changed."""
    plugins.allow(Sealed(folder).recipe(), folder)


def load(folder: str | Path, *, model: Network | None = None, algorithm: Algorithm | None = None,
         trust: bool = False) -> Result:
    """A finished run from its folder. `model` and `algorithm` are your own, where the run's were not umbel's.

    Nothing is imported for it, but by `trust`, which imports the files of code that its recipe names.
    """
    path = Path(folder)
    if trust:
        allow(path)
    if not (path / "result.json").is_file():
        raise UmbelError(f"There is no finished run in {path}: it holds no result.json. umbel.resume(folder) goes on"
                         " with one that was stopped.")
    seal = Sealed(path)
    recipe, (info, clusters, _) = seal.recipe(), seal.finished()
    about = Provenance(
        setup={name: value for name, value in recipe.items()
               if name not in {"method", "settings", *asdict(RunOptions())}},
        plan=load_plan(seal.checked("partition.npz")) if seal.there("partition.npz") else None, data=info["data"],
        part=info["data_part"], partition_hash=info["partition_hash"], preparation=_preparation_of(recipe, seal),
    )
    truth = tuple((info["clusters"]["truth"] or {}).values())  # of the last round: the run is over
    method = _method_of(recipe, info, path)
    if algorithm is None and method is None:
        file = plugins.parted(recipe.get("method"))
        more = f", or trust=True, which imports {file[0]}" if file else ""
        raise UmbelError(f"The run in {path} is of a method of your own, '{info['method']}': give it as"
                         f" umbel.load(folder, algorithm=...){more}.")
    algorithm = algorithm or algorithm_of(str(method), recipe.get("settings", {}), truth)
    saved, net = last_saved(seal, algorithm.state, info), _network(seal, model, recipe)
    if net is not None:
        saved.check(net, algorithm, info["clients"], path)
    return Result(info, clusters, saved.kept, saved.records, algorithm, net,
                  saved.memory, saved.memory_rounds, about, RunOptions.of(recipe), seal.forecasts(clusters))


def _method_of(recipe: Mapping[str, Any], info: Mapping[str, Any], folder: Path) -> str | None:
    """The run's method as it can be had without an import: by its name, or where its file was imported already."""
    if plugins.parted(recipe.get("method")) is None:
        return info["method"] if info["method"] in ALGORITHMS else None
    return plugins.had(recipe, "method", folder)


def _of_a_file(recipe: Mapping[str, Any]) -> bool:
    """Whether what models are for may be known in a person's own file alone."""
    return any(plugins.parted(recipe.get(name)) for name in ("objective", "data"))


def _preparation_of(recipe: Mapping[str, Any], seal: Sealed) -> Preparation | None:
    """How a table was prepared; None where that is for an objective of a file that was not imported."""
    try:
        return seal.preparation()
    except UmbelError:
        if _of_a_file(recipe):
            return None
        raise


def _network(seal: Sealed, network: Network | None, recipe: Mapping[str, Any]) -> Model | None:
    """The run's network with its normalisation, or None where nobody says how to build it."""
    if not seal.there("model.json"):
        return None
    about = seal.model()
    shape, rest = tuple(about["shape"]), {name: tuple(map(float, about[name])) for name in ("mean", "std")}
    goal, own = (plugins.had(recipe, name, seal.path) for name in ("objective", "model"))
    try:
        described = about.get("objective") or about["classes"]  # a number of classes before 0.2
        objective = objective_of(described, GOALS[goal] if goal else None)
    except UmbelError:
        if _of_a_file(recipe):  # its kind is known where its file is imported
            return None
        raise
    except (LookupError, TypeError, OverflowError) as error:  # described by settings that this objective has not
        raise UmbelError(f"The 'objective' in {seal.path / 'model.json'} must be as umbel wrote it. Got other settings:"
                         f" {error}.") from error
    name = own or about["name"]
    if network is None and (own or (name in MODELS and not plugins.parted(name))):
        return build(name, shape, objective, **rest, tokens=about.get("tokens", False),
                     levels=tuple(about.get("levels", ())))
    if network is None or isinstance(network, str):
        return None
    return wrap(network, shape, objective, tokens=about.get("tokens", False), head=about["head"], name=about["name"],
                **rest)


def same_recipe(out: Path, asked: Experiment | None, but: str = "") -> Experiment:
    """The experiment that a run folder holds, which must be the one asked for, if any is; one name may differ."""
    own = Experiment.from_table(Sealed(out).recipe(), out / "recipe.toml")
    if asked is not None:
        whole = replace(own, settings=settings_of(own.algorithm()))  # an older recipe lacks newer settings
        refuse_other(out, asdict(whole), asdict(asked.resolved()), but)
    return own


def refuse_other(out: Path, own: dict[str, Any], asked: dict[str, Any], but: str = "") -> None:
    """Refuse to go on with a folder's recipe where another is asked for."""
    if name := differing(own, asked, but):
        raise UmbelError(
            f"The run folder {out} is from another recipe: its '{name}' is {flat(own).get(name)!r},"
            f" asked for is {flat(asked).get(name)!r}. Leave the options out to go on with it, or choose another --out."
        )
