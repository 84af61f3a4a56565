"""A client that comes when a run has ended: which cluster is it in, and which model should it use?"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from umbel import plugins, tree
from umbel.algorithms.base import travelling
from umbel.data import formats
from umbel.data.clients import EPOCHS, Pool, Population
from umbel.data.own import is_own, read_site
from umbel.data.plans import load_plan
from umbel.data.rows import Half, Like, site
from umbel.data.tables import is_table
from umbel.errors import UmbelError
from umbel.federation.door import Cohort, NobodyAnswered
from umbel.federation.phases import ADMIT, EVALUATE
from umbel.federation.tasks import TASKS
from umbel.federation.uplink import parse
from umbel.fields import bounded
from umbel.files import there
from umbel.nets.model import Model
from umbel.nets.objective import Objective, objective_of
from umbel.nets.standalone import Standalone
from umbel.runs import evaluate
from umbel.runs.checkpoint import last_saved
from umbel.runs.experiment import Experiment
from umbel.runs.sealed import Sealed
from umbel.tree import Held, Params, Stack

MIXED = (3, 32, 32)  # images of a scenario that brings several data sets


@dataclass(frozen=True)
class Admission:
    """Where a newcomer was placed."""

    name: str
    cluster: int
    members: int  # clients of the run in that cluster; 0 = the newcomer is like nobody, and founds it
    model: Params = field(repr=False)  # the cluster's weights, fine-tuned where that was asked for
    score: float | None  # of the cluster's model on the newcomer's test rows, where it has some
    fine_tuned: float | None
    net: Model = field(repr=False)

    @property
    def accuracy(self) -> float | None:
        """The score in a run that is judged by accuracy."""
        self.net.objective.metric.must_be_accuracy()
        return self.score

    @property
    def module(self) -> Standalone:
        """The model as a plain module that scales its inputs itself."""
        return Standalone(self.net, tree.to(self.model, "cpu"))


Rows: TypeAlias = tuple[NDArray[Any], ...]  # x_train, y_train; x_test, y_test if there are some


def admit(run: str | Path, client: str | Path | Rows, name: str | None = None, epochs: int = 0,
          trust: bool = False) -> Admission:
    """Place a client in a finished run, by an npz file or by its arrays: (x_train, y_train[, x_test, y_test]).

    The run folder stays as it was; only the newcomer's own rows are looked at. `epochs` of fine-tuning on them come
    before its model is returned. `trust` imports the files of code that the run's recipe names.
    """
    bounded(epochs, "epochs", "a newcomer", ge=0, le=EPOCHS)
    run = Path(run)
    if trust:
        plugins.allow(Sealed(run).recipe(), run)
    seal = Sealed(run)
    info = _finished(seal)
    experiment = Experiment.from_table(seal.recipe(), run / "recipe.toml")
    if experiment.method == "oracle":
        raise UmbelError("The oracle is told the true groups, and a newcomer's is not known. Take another method.")
    known = list(info["clusters"]["labels"])
    name = name or (Path(client).stem if isinstance(client, str | Path) else "newcomer")
    if name in known:
        raise UmbelError(f"A newcomer needs a name of its own. '{name}' is a client of {run}: give another by --name.")
    people = _alone(client, experiment, known, name, load_plan(seal.checked("partition.npz")).classes, seal)
    about = seal.read_json("model.json")
    goal = objective_of(about.get("objective") or people.objective, people.objective)
    people = replace(people, levels=tuple(about.get("levels", ())), objective=goal)  # with weights as they were counted
    here = replace(experiment, engine="simulator", class_weights="")
    fed = here.gather(people)  # whoever ran it: the newcomer's rows are here
    algorithm = experiment.algorithm()
    algorithm = algorithm.for_run(algorithm.pretrain + experiment.rounds)
    saved = last_saved(seal, algorithm.state, info)
    saved.check(fed.net, algorithm, len(known), run)
    state = replace(saved, state=saved.kept).on(fed.device)
    state = replace(state, labels=torch.cat([state.labels, torch.tensor([-1])]))
    newcomer = torch.tensor([len(known)])
    fed.bound = experiment.bound
    fed.uplinks = parse(experiment.uplink)  # it is placed by what the others were
    with _placing(name, run):
        state = algorithm.admit(fed, state, Cohort(newcomer, saved.round + 1, ADMIT))
    fed.uplinks = ()  # what it makes of its model stays with it
    label = int(state.labels[-1])
    own = algorithm.uses(fed.net)
    become = (*own, *(["fine_tune"] if epochs else []))  # as evaluate does it, but the model comes out
    model: Held | Stack = Held(travelling(fed.net, algorithm.local, state.models), state.labels[newcomer])
    for step in become:
        options = algorithm.local.at(0) if step == "fine_tune" else {}
        with _placing(name, run):
            heard = fed.map(TASKS[step], Cohort(newcomer, saved.round + 1, EVALUATE), each={"model": model},
                            work=algorithm.local.work._replace(epochs=epochs), **options)
        model = heard.answers["model"]
    stack = model.rows(torch.tensor([0])) if isinstance(model, Held) else model

    def score(become: tuple[str, ...]) -> float | None:
        clients = evaluate.scores(fed, algorithm, state, saved.round + 1, become, epochs)["clients"]
        return clients[name]["score"] if name in clients else None

    tested = len(people.test[-1]) > 0
    members = Counter(info["clusters"]["labels"].values())[label]
    return Admission(name, label, members, tree.take(stack, 0), score(own) if tested else None,
                     score(become) if tested and epochs else None, fed.net)


@contextmanager
def _placing(name: str, run: Path) -> Iterator[None]:
    """A sentence where a newcomer cannot be placed by what the folder holds: a method's own evidence is described by
    nobody but the method, and is met only here.
    """
    try:
        yield
    except UmbelError:
        raise
    except NobodyAnswered as error:
        raise UmbelError(f"The client '{name}' could not be placed: {error}.") from error
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split()).rstrip(".")[:200]
        raise UmbelError(f"The evidence in {run} must be what its method left there. The client '{name}' cannot be"
                         f" placed by it: {reason}.") from error


def _finished(seal: Sealed) -> dict[str, Any]:
    if not there(seal.path / "result.json"):
        raise UmbelError(f"A newcomer can be admitted to a run that has ended. There is no result.json in {seal.path}.")
    return seal.finished()[0]


def _own_halves(client: str | Path | Rows, seal: Sealed, name: str, goal: Objective) -> list[Half]:
    """The newcomer's rows, prepared as the others' were."""
    how, about = seal.preparation(), seal.model()
    if how is not None and isinstance(client, str | Path) and is_table(client):
        train, test = read_site(client, how)
        return [train, *([] if test is None else [test])]
    arrays = formats.client_npz(Path(client)) if isinstance(client, str | Path) else client
    if how is not None:
        own = np.asarray(arrays[0], dtype=np.float32)
        arrays = tuple(how.applied(np.asarray(part, dtype=np.float32), own) if k % 2 == 0 else part
                       for k, part in enumerate(arrays))
    kind = "tokens" if about.get("tokens") else "pixels" if len(about["shape"]) == 3 else "numbers"
    like = Like(tuple(about["shape"]), (kind,), "those of this run")
    return site(f"'{name}'", arrays, goal, like)


def _alone(client: str | Path | Rows, experiment: Experiment, known: list[str], name: str,
           classes: int, seal: Sealed) -> Population:
    """The newcomer with its rows, behind the clients of the run, whose rows are elsewhere and who are not asked."""
    source = experiment.source
    if is_own(experiment.data) or seal.there("preparation.json"):
        goal = objective_of(seal.model()["objective"], source.objective if source else experiment.own_objective)
        how = seal.preparation()
        return _among(_own_halves(client, seal, name, goal), known, name, goal, how.levels if how is not None else ())
    objective = source.objective if source else objective_of(classes)
    like = Like(source.shape if source else MIXED, (source.inputs if source else "pixels",), "those of this run")
    arrays = formats.client_npz(Path(client)) if isinstance(client, str | Path) else client
    return _among(site(f"'{name}'", arrays, objective, like), known, name, objective, source.levels if source else ())


def _among(parts: list[Half], known: list[str], name: str, objective: Objective,
           levels: tuple[int, ...] = ()) -> Population:
    """A population in which the newcomer alone is asked."""
    rows = np.split(np.arange(sum(len(y) for _, y in parts)), np.cumsum([len(y) for _, y in parts])[:-1])
    none = np.empty(0, dtype=np.int64)
    pool = Pool(np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts]))
    gone = np.zeros(len(known) + 1, dtype=np.int64)  # from round 0 on
    gone[-1] = np.iinfo(np.int64).max
    return Population(
        pool, [*[none] * len(known), rows[0]], [*[none] * len(known), rows[1] if len(rows) > 1 else none],
        np.zeros(len(known) + 1, dtype=np.int64), objective, [*known, name], leaves=gone,
        facts={"groups": 0}, levels=levels,
    )
