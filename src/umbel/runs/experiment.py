"""What a run is, as data: every choice that decides its result, checked when it is made."""

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from umbel.algorithms import ALGORITHMS, Algorithm, Local
from umbel.algorithms.base import choice, number
from umbel.data import scenarios, sources
from umbel.data.clients import IntArray, Population
from umbel.data.plans import Plan, load_plan, realise
from umbel.data.scenarios import SCENARIOS
from umbel.data.sources import DATASETS, Dataset
from umbel.engines import ENGINES
from umbel.engines.local import device_of
from umbel.errors import UmbelError, unknown
from umbel.federation.door import Federation
from umbel.nets.model import PRECISIONS, Model
from umbel.nets.networks import MODELS
from umbel.nets.wrap import build, wrap
from umbel.runs.recipe import check, read_toml, settings_of, to_toml, typed
from umbel.seeds import generator

Network = str | nn.Module | Callable[[], nn.Module]  # a registered name, a module, or a function that builds one
Normalisation = tuple[tuple[float, ...], tuple[float, ...]]  # mean and std, one number a channel
RAW: Normalisation = ((0.0,), (1.0,))
COMMON: Normalisation = ((0.5,), (0.5,))  # for a scenario that brings several data sets


@dataclass(frozen=True)
class Experiment:
    """A recipe. `None` means: decided by the rest; `resolved()` says how."""

    method: str = "fedavg"
    data: str | None = None  # digits, unless the scenario brings its own
    scenario: str = "iid"
    partition: str | None = None  # a partition.npz to load instead of drawing one
    clients: int | None = number(None, ge=1)
    test_mode: str | None = choice(None, "label_full", "matched", "holdout")
    shuffle: bool = False  # deal the clients' places at random, so that those who join late come from all groups
    pooled: bool = False  # one client per true group, with all its data: SOLO on it is the centralised oracle
    join: str = ""  # "20@50": the last 20 clients appear at round 50
    leave: str = ""  # "5@30": the first 5 clients are gone from round 30 on
    model: str | None = None  # mlp for digits, lenet5 otherwise
    normalise: bool | None = None  # by the data set's mean and std; not for mlp, as in the Comparative Evaluation
    rounds: int = number(20, ge=1)  # after a method's own pre-training rounds
    fraction: float = number(1.0, gt=0, le=1)  # of the placed clients, asked in a round
    seed: int = number(0, ge=0, lt=2**32)
    engine: str = "simulator"
    device: str = choice("auto", "auto", "cpu", "cuda")
    precision: str = choice("float32", *PRECISIONS)
    eval_every: int = number(1, ge=1)
    average_last: int = number(1, ge=1)  # rounds over which the cluster model's accuracy is averaged
    fine_tune: int | None = number(None, ge=0)  # epochs; as many as a round's unless given; 0 = leave it out
    settings: Mapping[str, Any] = field(default_factory=dict)  # the method's hyper-parameters

    def __post_init__(self) -> None:
        check(self, "the experiment")
        _known("method", self.method, ALGORITHMS)
        _known("engine", self.engine, ENGINES)
        _known("model", self.model, MODELS)
        _known("data set", self.data, DATASETS)
        if self._first_scenario.brings_data and self.data is not None:
            raise UmbelError(f"The scenario '{self.scenario}' brings its own data sets. Leave out data '{self.data}'.")
        _moves("join", self.join)
        _moves("leave", self.leave)
        object.__setattr__(self, "settings", typed(ALGORITHMS[self.method], self.method, self.settings))
        check(self.algorithm(), self.method)
        check(self.algorithm().local, self.method)
        if self.fine_tune == 0 and self.algorithm().headline == "fine_tuned":
            raise UmbelError(f"The 'fine_tune' of {self.method}, judged by it, must be at least 1. Got 0 instead.")

    @property
    def _first_scenario(self) -> scenarios.Scenario:
        return SCENARIOS[scenarios.parse(self.scenario)[0][0]]

    def resolved(self) -> "Experiment":
        """The same experiment with every default written out."""
        first = self._first_scenario
        data = self.data or (None if first.brings_data else "digits")
        model = self.model or ("mlp" if data == "digits" else "lenet5")
        algorithm = self.algorithm()
        return replace(
            self,
            data=data,
            clients=self.clients or first.clients,
            test_mode=self.test_mode or first.test_mode,
            model=model,
            normalise=self.normalise if self.normalise is not None else model != "mlp",
            device=device_of(self.device).type,
            fine_tune=algorithm.local.epochs if self.fine_tune is None else self.fine_tune,
            settings=settings_of(algorithm),
        )

    def algorithm(self, truth: tuple[int, ...] = ()) -> Algorithm:
        """The method with its settings; one that declares `truth` is told the true groups here, and only here."""
        kind: Any = ALGORITHMS[self.method]
        own = {each.name: each for each in fields(kind)}
        local = {each.name for each in fields(Local)}
        given = {name: value for name, value in self.settings.items() if name not in local}
        if "truth" in own:
            given["truth"] = truth
        training: Any = own["local"].default
        given["local"] = replace(training, **{name: value for name, value in self.settings.items() if name in local})
        method: Algorithm = kind(**given)
        return method

    def draw(self, folder: Path | None = None) -> tuple[Plan, Dataset]:
        """Who holds what, and the data it speaks of. `folder` is where data sets are looked for first."""
        if self.data is None:
            dataset = scenarios.mix4(lambda name: _loaded(name, folder))
        else:
            dataset = _loaded(self.data, folder)
        if self.partition:
            return load_plan(self.partition), dataset
        drawn = scenarios.draw(self.scenario, dataset, clients=self.clients, seed=self.seed, test_mode=self.test_mode)
        return drawn, dataset

    def build(self, plan: Plan, dataset: Dataset, network: Network | None = None) -> tuple[Federation, Algorithm]:
        """The federation and the method of a *resolved* experiment; `network` stands in for its model."""
        people = realise(plan, dataset)
        if self.pooled or self.algorithm().needs_truth:
            self._has_groups(people)
        people = people.pooled() if self.pooled else people
        if self.shuffle:
            people = people.in_order(generator(self.seed, "shuffle").permutation(len(people.train)))
        n = len(people.train)
        people = replace(people, joins=_joins(self.join, n), leaves=_leaves(self.leave, n))
        self._never_empty(people)
        fed = self.gather(people, network)
        fed.facts |= {"data": dataset.label, "data_part": dataset.part}
        fed.plan = plan
        return fed, self.algorithm(tuple(people.truth.tolist()))

    def gather(self, people: Population, network: Network | None = None) -> Federation:
        """A federation of these clients, with this experiment's model, engine and seed."""
        net = _network(network or self.model or "mlp", people, self._normalisation(), self.precision)
        fed = _federation(net, people, self.seed, self.engine, self.device)
        fed.setup = {name: getattr(self, name) for name in SETUP} | {"model": net.name}
        return fed

    def _has_groups(self, people: Population) -> None:
        if not people.facts.get("groups", 1):
            asker = "--pooled" if self.pooled else f"The method '{self.method}'"
            raise UmbelError(f"{asker} needs true groups, and the scenario '{self.scenario}' has none.")

    def _never_empty(self, people: Population) -> None:
        """Somebody is there at the start and after every change."""
        for round in sorted({0} | {when for _, when in _moves("join", self.join) + _moves("leave", self.leave)}):
            if not people.present(round).any():
                raise UmbelError(
                    f"At least one client must be there in every round. Got join '{self.join}' and leave"
                    f" '{self.leave}' of {len(people.train)} clients: nobody is there in round {round}."
                )

    def _normalisation(self) -> Normalisation:
        if not self.normalise:
            return RAW
        return COMMON if self.data is None else (DATASETS[self.data].mean, DATASETS[self.data].std)

    def to_toml(self) -> str:
        """The recipe as a file."""
        return to_toml(asdict(self))

    @classmethod
    def from_toml(cls, path: Path, **changes: Any) -> "Experiment":
        """A recipe from a file, some of its fields changed."""
        table = read_toml(path)
        settings = table.pop("settings", {})
        if not isinstance(settings, Mapping):
            raise UmbelError(f"The 'settings' in {path} must be a table, as in [settings]. Got {settings!r} instead.")
        settings = {**settings, **changes.pop("settings", {})}
        known = {each.name for each in fields(cls)}
        for name in table:
            if name not in known:
                raise unknown(f"option in {path} named", name, known)
        return cls(**{**table, **changes, "settings": settings})


SETUP = ("data", "scenario", "partition", "clients", "test_mode", "shuffle", "pooled", "join", "leave", "model",
         "normalise", "seed", "engine", "device", "precision")  # the fields that make a federation


def simulate(
    data: str | Dataset | Population = "digits",
    *,
    scenario: str = "iid",
    clients: int | None = None,
    model: Network | None = None,
    seed: int = 0,
    engine: str = "simulator",
    device: str = "auto",
    precision: str = "float32",
    test_mode: str | None = None,
    data_dir: str | Path | None = None,
    workers: int = 1,
) -> Federation:
    """A federation on this machine: of a named data set, of your own `Dataset`, or of clients you drew yourself.

    `workers` processes share long training on a CPU; the result does not depend on how many there are.
    """
    fed = _simulate(data, scenario, clients, model, seed, engine, device, precision, test_mode, data_dir)
    fed.workers = workers
    return fed


def _simulate(data: str | Dataset | Population, scenario: str, clients: int | None, model: Network | None, seed: int,
              engine: str, device: str, precision: str, test_mode: str | None,
              data_dir: str | Path | None) -> Federation:
    if isinstance(data, str):
        name = model if isinstance(model, str) else None
        named = None if data in SCENARIOS and SCENARIOS[data].brings_data else data
        experiment = Experiment(
            data=named, scenario=scenario if named else data, clients=clients, model=name, seed=seed, engine=engine,
            device=device, precision=precision, test_mode=test_mode,
        ).resolved()
        drawn = experiment.draw(None if data_dir is None else Path(data_dir))
        return experiment.build(*drawn, network=None if model is name else model)[0]
    _known("engine", engine, ENGINES)
    plan = None
    if isinstance(data, Dataset):
        plan = scenarios.draw(scenario, data, clients=clients, seed=seed, test_mode=test_mode)
        data = realise(plan, data)
    if precision not in PRECISIONS:
        raise unknown("precision", precision, PRECISIONS)
    fed = _federation(_network(model or "mlp", data, RAW, precision), data, seed, engine, device)
    fed.plan = plan
    fed.setup = {"data": "own", "scenario": scenario, "clients": len(data.train), "model": fed.net.name, "seed": seed,
                 "engine": engine, "device": fed.device.type, "precision": precision}
    return fed


def _network(network: Network, people: Population, normalisation: Normalisation, precision: str) -> Model:
    mean, std = normalisation
    if isinstance(network, str):
        net = build(network, people.shape, people.classes, mean, std)
    else:
        net = wrap(network, people.shape, people.classes, mean=mean, std=std)
    return replace(net, precision=precision)


def _federation(net: Model, people: Population, seed: int, engine: str, device: str) -> Federation:
    fed = ENGINES[engine](net, people, seed, device_of(device))
    fed.facts = {
        "data": "own",
        "data_part": "",
        "test_mode": people.facts.get("test_mode"),
        "partition_hash": people.hash,
        "truth": people.truth.tolist() if people.facts.get("groups", 1) else None,
        "label_counts": people.label_counts.tolist(),
        "scenario": dict(people.facts),
    }
    return fed


def _known(kind: str, name: str | None, registry: Mapping[str, Any]) -> None:
    if name is not None and name not in registry:
        raise unknown(kind, name, registry)


@lru_cache(maxsize=8)
def _loaded(name: str, folder: Path | None) -> Dataset:
    return sources.load(name, folder)


def _moves(flag: str, text: str) -> list[tuple[int, int]]:
    """`20@50,5@80` as [(20, 50), (5, 80)]: how many clients, at which round."""
    moves = []
    for piece in filter(None, text.split(",")):
        if not re.fullmatch("[1-9][0-9]{0,8}@[1-9][0-9]{0,8}", piece.strip()):
            raise UmbelError(f"A {flag} is written COUNT@ROUND, both at least 1, as in 20@50. Got '{piece}' instead.")
        count, _, round = piece.partition("@")
        moves.append((int(count), int(round)))
    return moves


def _joins(text: str, n: int) -> IntArray | None:
    """The round in which each of n clients appears: the last ones named come from the end of the list."""
    rounds = np.zeros(n, dtype=np.int64)
    last = n
    for count, round in reversed(_moves("join", text)):
        rounds[max(0, last - count) : max(0, last)] = round
        last -= count
    return rounds if text else None


def _leaves(text: str, n: int) -> IntArray | None:
    """The round from which each of n clients is gone: the first ones named come from the start of the list."""
    rounds = np.full(n, np.iinfo(np.int64).max)
    first = 0
    for count, round in _moves("leave", text):
        rounds[first : first + count] = round
        first += count
    return rounds if text else None
