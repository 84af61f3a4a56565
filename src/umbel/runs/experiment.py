"""What a run is, as data: every choice that decides its result, checked when it is made."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

import numpy as np
from torch import nn

from umbel import plugins
from umbel.algorithms import ALGORITHMS, Algorithm, Local
from umbel.data import events, scenarios, sources
from umbel.data.clients import NEVER, IntArray, Population
from umbel.data.own import is_own, open_own
from umbel.data.plans import Plan, load_plan, realise
from umbel.data.prepare import SCALINGS, Preparation
from umbel.data.scenarios import SCENARIOS
from umbel.data.sources import DATASETS, Dataset, Source
from umbel.data.tables import AIMS, Asked
from umbel.data.testsets import OWN
from umbel.engines import ENGINES
from umbel.engines.local import device_of
from umbel.errors import UmbelError, unknown
from umbel.federation import attackers
from umbel.federation.door import Federation
from umbel.federation.provenance import Provenance
from umbel.fields import bounded, check, choice, number, refuse_unknown
from umbel.nets import MODELS
from umbel.nets.model import PRECISIONS, Model
from umbel.nets.objective import GOALS, METRICS, Classify, NextToken, Objective
from umbel.nets.wrap import build, wrap
from umbel.runs.options import RunOptions
from umbel.runs.prepared import prepare
from umbel.runs.recipe import read_toml, settings_of, to_toml, typed
from umbel.seeds import generator

Network = str | nn.Module | Callable[[], nn.Module]  # a registered name, a module, or a function that builds one
Normalisation = tuple[tuple[float, ...], tuple[float, ...]]  # mean and std, one number a channel
RAW: Normalisation = ((0.0,), (1.0,))
COMMON: Normalisation = ((0.5,), (0.5,))  # for a scenario that brings several data sets


def algorithm_of(method: str, settings: Mapping[str, Any], truth: tuple[int, ...] = (),
                 truth_changes: tuple[tuple[int, int, int], ...] = ()) -> Algorithm:
    """A method by name, with its settings flat: its own, and those of its local training."""
    kind: Any = ALGORITHMS.find(method)
    values = typed(kind, settings)
    own = {each.name: each for each in fields(kind)}
    local = {each.name for each in fields(Local)}
    given = {name: value for name, value in values.items() if name not in local}
    given |= {name: value for name, value in (("truth", truth), ("truth_changes", truth_changes)) if name in own}
    training: Any = own["local"].default
    given["local"] = replace(training, **{name: value for name, value in values.items() if name in local})
    algorithm: Algorithm = kind(**given)
    return algorithm


def rule_of(name: str) -> Any:
    """A field of RunOptions again, with its default and its rule."""
    same = next(each for each in fields(RunOptions) if each.name == name)
    return field(default=same.default, metadata=same.metadata)


@dataclass(frozen=True)
class Experiment:
    """A recipe. `None` means: decided by the rest; `resolved()` says how."""

    method: str = "fedavg"
    data: str | None = None  # digits, unless the scenario brings its own
    client_column: str | None = None  # of a table: whose a row is
    target_column: str | None = None  # of a table: what is to be learnt
    objective: str | None = None  # a plug-in's, or of own data classify or regress; None = as data or target say
    drop: str | None = None  # columns of a table that are left out: "id,name"
    categories: str | None = None  # columns of whole numbers that are names: "ward,month"
    split: str | None = None  # of a table into training and test rows: rows, time:COLUMN or column:NAME
    test_share: float | None = number(None, gt=0, lt=1)  # of each client's rows
    weight_column: str | None = None  # of a table: what the losses of its training rows are multiplied by
    scaling: str | None = choice(None, *SCALINGS)  # of a table: by sums of all clients, by each site's own, not at all
    preparation: str | None = None  # a preparation.json of an earlier run: nothing is asked of the clients
    scenario: str | None = None  # natural where the data say whose the rows are, iid otherwise
    partition: str | None = None  # a partition.npz to load instead of drawing one
    clients: int | None = number(None, ge=1, le=100_000)
    test_mode: str | None = choice(None, "label_full", "matched", "holdout", OWN)
    shuffle: bool = False  # deal the clients' places at random, so that those who join late come from all groups
    pooled: bool = False  # one client per true group, with all its data: SOLO on it is the centralised oracle
    join: str = ""  # "20@50": the last 20 clients appear at round 50
    leave: str = ""  # "5@30": the first 5 clients are gone from round 30 on
    change: str = ""  # "2@3:rotate:90": the first 2 clients' images are turned, on top of their own shift, from round 3
    attack: str = ""  # "2:scaled:100": two clients, drawn by the seed, send a hundred times their update
    model: str | None = None  # lenet5 for images but digits, tcn for series, gru for texts, mlp otherwise
    metric: str = ""  # what the run is judged by; "" = as the data's objective says
    class_weights: str = ""  # of the loss: "balanced", or one number a class, "1,4"; "" = as the data's objective says
    normalise: bool | None = None  # by the set's mean and std; not images in an mlp, as in the Comparative Evaluation
    rounds: int = rule_of("rounds")
    fraction: float = rule_of("fraction")
    seed: int = number(0, ge=0, lt=2**32)
    engine: str = "simulator"
    device: str = choice("auto", "auto", "cpu", "cuda")
    precision: str = choice("float32", *PRECISIONS)
    eval_every: int = rule_of("eval_every")
    average_last: int = rule_of("average_last")
    fine_tune: int | None = rule_of("fine_tune")
    keep: str = rule_of("keep")
    uplink: str = rule_of("uplink")
    bound: float = rule_of("bound")
    settings: Mapping[str, Any] = field(default_factory=dict)  # the method's hyper-parameters
    plugins: Mapping[str, str] = field(default_factory=dict)  # files of a person's own code, and their digests

    def __new__(cls, *given: Any, **named: Any) -> Self:
        """A misspelt option is refused with the near spelling."""
        refuse_unknown(cls, named, "the run")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        check(self, "the run")
        plugins.refuse_changed(self.plugins)
        ALGORITHMS.find(self.method)
        _known("engine", self.engine, ENGINES)
        if self.model is not None:
            MODELS.find(self.model)
        if self.objective is not None and self.objective not in AIMS and self.objective not in GOALS:
            raise unknown("objective", self.objective, [*AIMS, *GOALS.added])
        self.own_objective  # noqa: B018 (it is brought, or refused)
        if is_own(self.data):
            self.asked  # noqa: B018 (its own check)
        else:
            if self.data is not None and not sources.known(self.data):
                raise unknown("data set", self.data, [*DATASETS, *sources.OWN.added])
            self._refuse_for_tables()
        _known("metric", self.metric or None, METRICS)
        if self.scenario is not None and self._first_scenario.brings_data and self.data is not None:
            raise UmbelError(f"The scenario '{self.scenario}' brings its own data sets. Leave out data '{self.data}'.")
        events.moves("join", self.join)
        events.moves("leave", self.leave)
        events.shifts(self.change)
        if attackers.parse(self.attack) and self.pooled:
            raise UmbelError("Attackers are clients among others, and pooled ones are none: leave out one of the two.")
        object.__setattr__(self, "settings", typed(ALGORITHMS[self.method], self.settings))
        object.__setattr__(self, "uplink", self.options.uplink)
        self.options.check_for(self.algorithm())

    @property
    def _first_scenario(self) -> scenarios.Scenario:
        return SCENARIOS[scenarios.parse(self._chosen_scenario)[0][0]]

    @property
    def _chosen_scenario(self) -> str:
        return self._usual_scenario if self.scenario is None else self.scenario

    @property
    def _usual_scenario(self) -> str:
        return scenarios.usual(is_own(self.data) or self._own_clients)

    @property
    def asked(self) -> Asked:
        """What is said of a table of one's own."""
        return Asked(self.client_column, self.target_column, self.own_objective or self.objective, _names(self.drop),
                     _names(self.categories), self.split or "rows", self.test_share or Asked.test_share,
                     self.weight_column)

    @property
    def own_objective(self) -> Objective | None:
        """What models are for by a person's or a package's own word; None where that is left to the data."""
        return None if self.objective is None or self.objective in AIMS else GOALS[self.objective]

    def _refuse_for_tables(self) -> None:
        for name in OF_TABLES:
            if getattr(self, name) is not None and not (name == "objective" and self.own_objective):
                which = f"'{name}' {self.objective}" if name == "objective" else f"'{name}'"
                raise UmbelError(f"The {which} of a run is for data of your own, as in --data patients.csv. Got data"
                                 f" '{self.data or 'digits'}'.")

    @property
    def _own_clients(self) -> int:
        """How many clients a set by name has in life."""
        return 0 if self.data is None or is_own(self.data) else sources.source_of(self.data).clients

    @property
    def options(self) -> RunOptions:
        """How long it is and how it is tested."""
        return RunOptions.of(vars(self))

    def refuse_late(self) -> None:
        """Raise where clients would come, go or change when the run is over."""
        total = self.algorithm().pretrain + self.rounds
        for name, moves in (("join", events.moves("join", self.join)), ("leave", events.moves("leave", self.leave)),
                            ("change", events.shifts(self.change))):
            if late := [round for _, round, *_ in moves if round >= total]:
                raise UmbelError(f"The round of a {name} must be less than {total}, the rounds of this run, which count"
                                 f" from 0, pre-training first. Got {late[0]} instead.")

    def resolved(self) -> "Experiment":
        """The same experiment with every default written out."""
        first = self._first_scenario
        data = self.data or (None if first.brings_data else "digits")
        own = is_own(data)
        source = None if data is None or own else sources.source_of(data)
        if self.normalise and own:
            raise UmbelError("Data of your own are scaled by --scaling. Got --normalise for them.")
        if self.normalise and source is not None and data not in DATASETS:
            raise UmbelError(f"The mean and std of the data set '{data}' are not known: leave out --normalise, and let"
                             " it bring inputs that are scaled.")
        images = data is None or (source is not None and source.images)
        known = data is None or data in DATASETS  # and so are its mean and std
        usual = "lenet5" if data is None else "mlp" if source is None or data == "digits" else source.model
        model = self.model or usual
        raw = own or (source is not None and source.raw)
        algorithm = self.algorithm()
        return replace(
            self,
            data=data,
            scenario=self._chosen_scenario,
            clients=self.clients or self._usual_clients(source),
            split=self.asked.split if own else None,
            test_share=self.asked.test_share if own else None,
            scaling=self.scaling or ("federated" if raw and self.preparation is None else None),
            test_mode=self.test_mode or first.test_mode,
            model=model,
            normalise=known and (model != "mlp" or not images) if self.normalise is None else self.normalise,
            device=device_of(self.device).type,
            fine_tune=algorithm.local.epochs if self.fine_tune is None else self.fine_tune,
            settings=settings_of(algorithm),
            plugins=plugins.digests(getattr(self, name) for name in plugins.NAMED_IN),
        )

    def _usual_clients(self, source: Source | None) -> int | None:
        """The scenario's own number, or fewer where the set is small; natural's are the set's.

        What depends on data of one's own is counted when they are read.
        """
        first = self._first_scenario
        if source is None:
            return (None if first.by_label and not first.brings_data else first.clients) or None
        return scenarios.usual_clients(first, source.train) or source.clients or None

    @property
    def source(self) -> Source | None:
        """What is known of its data set; None where the scenario brings several, and of a table or folder."""
        if self.data is None or is_own(self.data):
            return None
        found = sources.source_of(self.data)
        return found if self.own_objective is None else replace(found, objective=self.own_objective)

    def algorithm(self, truth: tuple[int, ...] = (),
                  truth_changes: tuple[tuple[int, int, int], ...] = ()) -> Algorithm:
        """The method with its settings; one that declares `truth` is told the true groups here, and only here."""
        return algorithm_of(self.method, self.settings, truth, truth_changes)

    def draw(self, folder: Path | None = None) -> tuple[Plan, Dataset]:
        """Who holds what, and the data it speaks of. `folder` is where data sets are looked for first."""
        if is_own(self.data):
            dataset = open_own(str(self.data), self.asked, self.seed)
        elif self.data is None:
            dataset = scenarios.mix4(lambda name: _loaded(name, folder))
        else:
            dataset = _loaded(self.data, folder)
        goal = self.own_objective
        if goal is not None and not is_own(self.data):
            named = dataset.objective
            if isinstance(goal, Classify) and isinstance(named, Classify) and goal.classes == named.classes:
                goal = replace(goal, labels=goal.labels or named.labels)
            dataset = replace(dataset, objective=goal, classes=goal.classes).checked()
        if self.partition:
            return load_plan(self.partition), dataset
        drawn = scenarios.draw(self._chosen_scenario, dataset, clients=self.clients, seed=self.seed,
                               test_mode=self.test_mode)
        return drawn, dataset

    def build(self, plan: Plan, dataset: Dataset, network: Network | None = None,
              workers: int = 1) -> tuple[Federation, Algorithm]:
        """The federation and the method of a *resolved* experiment; `network` stands in for its model."""
        people = realise(self.changed(plan, dataset), dataset)
        if self.pooled or self.algorithm().needs_truth:
            self._has_groups(people)
        people = people.pooled() if self.pooled else people
        if self.shuffle:
            people = people.in_order(self._shuffled(len(people.train)))
        n = len(people.train)
        people = replace(people, joins=events.joins(self.join, n) if self.join else people.joins,
                         leaves=events.leaves(self.leave, n) if self.leave else people.leaves)
        self._never_empty(people)
        given = None if self.preparation is None else Preparation.read(self.preparation)
        target = self.target_column or dataset.understood.get("target", {}).get("name", "")
        people, how, sent = prepare(people, self.scaling or "federated", given, self.seed, target,
                                    self.client_column or "")
        fed = self.gather(people, network, workers, plan=plan, data=dataset.label, part=dataset.part, preparation=how,
                          prepared=sent)
        return fed, self.algorithm(tuple(people.truth.tolist()), fed.provenance.truth_changes)

    def _shuffled(self, n: int) -> IntArray:
        """Which client of the plan stands at each place."""
        return generator(self.seed, "shuffle").permutation(n)

    def changed(self, plan: Plan, dataset: Dataset) -> Plan:
        """The plan with wrong labels of attackers, if these are that, and with the events of `change`.

        Both count places as joins and leaves do, after the shuffle.
        """
        n, y = len(plan.train), np.concatenate([dataset.y_train, dataset.y_test])
        order = self._shuffled(n) if self.shuffle else np.arange(n)
        attack = attackers.parse(self.attack)
        if attack and attack.kind == "mislabelled":
            plan = attackers.mislabelled(plan, [int(order[i]) for i in attackers.places(attack, n, self.seed)], y)
        if not self.change:
            return plan
        return replace(plan, events=(*plan.events, *events.changes(self.change, plan, y, order)))

    def gather(self, people: Population, network: Network | None = None, workers: int = 1, **about: Any) -> Federation:
        """A federation of these clients, with this experiment's model, engine and seed; `about` says where from."""
        people = aimed(people, self.metric, self.class_weights)
        net = network_for(people, network or self.model or "mlp", self._normalisation(), self.precision)
        setup = {name: getattr(self, name) for name in SETUP} | {"model": net.name}
        setup |= aims(self.metric, self.class_weights)
        return federation_of(net, people, self.seed, self.engine, self.device, workers, self.attack, setup=setup,
                             **about)

    def _has_groups(self, people: Population) -> None:
        if not people.facts.get("groups", 1):
            asker = "--pooled" if self.pooled else f"The method '{self.method}'"
            raise UmbelError(f"{asker} needs true groups, and the scenario '{self.scenario}' has none.")

    def _never_empty(self, people: Population) -> None:
        """Somebody is there at the start and after every change."""
        moves = [rounds for rounds in (people.joins, people.leaves) if rounds is not None]
        for round in sorted({0, *(int(when) for rounds in moves for when in rounds if when < NEVER)}):
            if not people.present(round).any():
                raise UmbelError(
                    f"At least one client must be there in every round. Got join '{self.join}' and leave"
                    f" '{self.leave}' of {len(people.train)} clients: nobody is there in round {round}."
                )

    def _normalisation(self) -> Normalisation:
        if not self.normalise or is_own(self.data):
            return RAW
        return COMMON if self.source is None else (self.source.mean, self.source.std)

    def to_toml(self) -> str:
        """The recipe as a file."""
        return to_toml({name: value for name, value in asdict(self).items() if name != "plugins" or value})

    @classmethod
    def from_toml(cls, path: Path, **changes: Any) -> "Experiment":
        """A recipe from a file that a person named, some of its fields changed.

        Files of code that the recipe names are imported only where this process has done so, or was told to trust them.
        """
        return cls.from_table(read_toml(path, follow=True), path, **changes)

    @classmethod
    def from_table(cls, table: Mapping[str, Any], path: Path, **changes: Any) -> "Experiment":
        """A recipe that was read from a file, some of its fields changed."""
        settings = table.get("settings", {})
        if not isinstance(settings, Mapping):
            raise UmbelError(f"The 'settings' in {path} must be a table, as in [settings]. Got {settings!r} instead.")
        settings = {**settings, **changes.pop("settings", {})}
        known = {each.name for each in fields(cls)}
        for name in table:
            if name not in known:
                raise unknown(f"option in {path} named", name, known)
        table = plugins.settled({name: value for name, value in table.items() if name not in changes}, path.parent)
        return cls(**{**table, **changes, "settings": settings})


OF_TABLES = ("client_column", "target_column", "objective", "drop", "categories", "split", "test_share",
             "weight_column")
"""The fields that say how data of one's own are read."""


def _names(text: str | None) -> tuple[str, ...]:
    """Names joined by commas."""
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())


SETUP = ("data", *OF_TABLES, "scaling", "preparation",
         "scenario", "partition", "clients", "test_mode", "shuffle", "pooled", "join", "leave", "change", "attack",
         "model", "normalise", "seed", "engine", "device", "precision")  # the fields that make a federation


def aimed(people: Population, metric: str, class_weights: str) -> Population:
    """The same clients, judged by this metric, with these weights of classes.

    Balanced ones are counted here, over all that a simulation knows: nothing is billed.
    """
    goal = people.objective.judged_as(metric) if metric else people.objective
    goal = goal.weighed(class_weights) if class_weights else goal
    if isinstance(goal, Classify) and goal.weights == "balanced":
        goal = goal.balanced(people.label_counts.sum(0))
    return replace(people, objective=goal)


def aims(metric: str, class_weights: str) -> dict[str, str]:
    """What a recipe says of both; one of an older umbel says nothing, which means the same as nothing chosen."""
    return {name: word for name, word in (("metric", metric), ("class_weights", class_weights)) if word}


def network_for(people: Population, network: Network, normalisation: Normalisation, precision: str) -> Model:
    """A model for these clients' inputs, by name or of one's own."""
    mean, std = normalisation
    if isinstance(network, str):
        levels = _levels(people) if network in list(MODELS) else people.levels
        net = build(network, people.shape, people.objective, mean, std, tokens=people.tokens, levels=levels)
    else:
        net = wrap(network, people.shape, people.objective, mean=mean, std=std, tokens=people.tokens,
                   name=plugins.place_of(network) or "own")
    return replace(net, precision=precision, levels=net.levels or people.levels)


def _levels(people: Population) -> tuple[int, ...]:
    """How many codes there are in each column, all of which must be below; of tokens that are classified at each place.

    Where nobody counted these, the largest one of a simulation's rows says it. What foretells tokens has a vocabulary.
    """
    x, levels, goal = people.pool.x, people.levels, people.objective
    if people.tokens and not isinstance(goal, NextToken):
        levels = levels or (int(x.max()) + 1,) * x.shape[-1]
    counts = (goal.vocabulary,) * x.shape[-1] if isinstance(goal, NextToken) and people.tokens else levels
    for column, count in enumerate(counts[: x.shape[-1]]):
        codes = x[..., column].reshape(len(x), -1)
        wrong = np.argwhere((codes < 0) | (codes >= count) | (codes % 1 != 0))
        if count and len(wrong):
            raise UmbelError(f"The {'tokens' if people.tokens else 'codes'} in column {column} must be whole numbers in"
                             f" 0 .. {count - 1}. Got {codes[tuple(wrong[0])]:g} in row {wrong[0][0]} instead.")
    return levels


def federation_of(net: Model, people: Population, seed: int, engine: str, device: str, workers: int, attack: str = "",
                  **about: Any) -> Federation:
    """The engine over these clients, which knows where it comes from."""
    workers = bounded(workers, "workers", "a simulation", ge=1, le=1000)
    fed = ENGINES[engine](net, people, seed, device_of(device))
    fed.workers = workers
    fed.provenance = Provenance.of(people, **about)
    if asked := attackers.parse(attack):
        fed.attackers = attackers.Attackers.of(asked, len(fed.names), seed)
        names = [name for name, own in zip(fed.names, fed.honest.tolist(), strict=True) if not own]
        fed.provenance = replace(fed.provenance, scenario={**(fed.provenance.scenario or {}), "attackers": names})
    return fed


def _known(kind: str, name: str | None, registry: Mapping[str, Any]) -> None:
    if name is not None and name not in registry:
        raise unknown(kind, name, registry)


@lru_cache(maxsize=8)
def _loaded(name: str, folder: Path | None) -> Dataset:
    return sources.open_dataset(name, folder)
