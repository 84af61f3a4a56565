"""Named kinds of heterogeneity with their ground truth: a partition, any number of shifts, and a local test set.

`draw("flag:labels=0.3+rotation-4", dataset)` makes a plan, which is row numbers and names only and can be saved;
`plans.realise(plan, dataset)` makes the clients.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from umbel.data import partition, shift
from umbel.data.clients import IntArray
from umbel.data.partition import OFFSETS, ClientRows, Drawn, Partitioner
from umbel.data.plans import Plan
from umbel.data.shift import Shifter
from umbel.data.sources import Dataset
from umbel.data.testsets import OWN, TEST_MODES, redrawn
from umbel.errors import UmbelError, unknown
from umbel.registry import Registry
from umbel.seeds import generator


class Parameter(NamedTuple):
    """A number after the colon: whole and at least `low` where the default is an int, else real and above `low`."""

    default: float
    low: float
    high: float
    doc: str
    of: str = "partition"  # or "shift"


@dataclass(frozen=True)
class Scenario:
    """One entry of SCENARIOS. One with a partition and a shift uses its own partition only where it stands first."""

    doc: str
    clients: int
    test_mode: str
    partition: Partitioner
    shift: Shifter | None = None
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    classes: int = 1  # the least it needs
    by_label: bool = True  # rows are dealt out by label, or by the bin of a number
    of: str = ""  # what it changes, and is refused without: "images" of any type, "uint8 images" or "labels"
    grouped: bool = True  # False: its shift differs from client to client and makes no groups
    brings_data: bool = False
    natural: bool = False  # rows belong to whom the data set says


ROWS_EACH = 100  # training rows of a client on average, where nobody says how many clients there are
MOST = 1_000_000  # upper limit of counts: far above any data set, and far below an overflow
_LABELS = Parameter(0.2, 0, 1, "share of all labels that a client holds (rho)")
_PER_LABEL = {"per_label": Parameter(100, 2, MOST, "rows of each label; fewer where the set is too small")}
_PICKED = {"per_label": Parameter(50, 1, MOST, "rows of each label that a client holds")}
_TAXONOMY: dict[str, Any] = {"clients": 48, "test_mode": "holdout", "parameters": _PER_LABEL}
_SKEWED: dict[str, Any] = {"clients": 100, "test_mode": "label_full"}


def _cflgt(count: int, labels: int) -> Scenario:
    doc = f"one of {count} sets of {labels} labels, picked at random"
    dealt = partial(partition.combinations, count=count, labels=labels)
    return Scenario(doc, partition=dealt, parameters=_PICKED, classes=labels, **_SKEWED)


SCENARIOS: Registry[Scenario] = Registry("scenario", {
    "natural": Scenario("clients as they are in life: the set's own", 0, OWN, partition.iid, by_label=False,
                        natural=True),
    "iid": Scenario("no heterogeneity: equal random shares", 20, "matched", partition.iid, by_label=False),
    "rotation-4": Scenario(
        "images turned by 0, 90, 180, 270 degrees", partition=partition.every_label, shift=shift.rotation_4,
        of="images", **_TAXONOMY
    ),
    "swap-6": Scenario(
        "six pairs of labels swapped", partition=partition.every_label, shift=shift.swap_6, classes=10,
        of="labels", **_TAXONOMY
    ),
    "feature-3": Scenario(
        "images as they are, eroded, dilated", partition=partition.every_label, shift=shift.feature_3,
        of="uint8 images", **_TAXONOMY
    ),
    "label-4": Scenario("two labels whole, a tenth of the others", partition=partition.label_4, classes=9, **_TAXONOMY),
    "quantity-4": Scenario("10, 20, 60, 100 % of the rows", partition=partition.quantity_4, **_TAXONOMY),
    "label-skew": Scenario(
        "each client its own share of the labels", partition=partition.label_skew, **_SKEWED,
        parameters={"labels": _LABELS},
    ),
    "flag": Scenario(
        "groups share labels, Dirichlet quantities", partition=partition.flag, **_SKEWED,
        parameters={
            "labels": _LABELS,
            "alpha": Parameter(1.0, 0, MOST, "evenness of quantities (alpha')"),
            "groups": Parameter(10, 1, MOST, "number of groups"),
            "min_per_label": Parameter(5, 0, MOST, "least rows of each own label; fewer where the set is too small"),
        },
    ),
    "dirichlet": Scenario(
        "labels divided over clients by Dirichlet", partition=partition.dirichlet, **_SKEWED,
        parameters={
            "alpha": Parameter(0.1, 0, MOST, "evenness (beta)"),
            "min_size": Parameter(10, 1, MOST, "least rows of a client"),
        },
    ),
    "dirichlet-clients": Scenario(
        "each client draws its label mix by Dirichlet", partition=partition.dirichlet_clients, **_SKEWED,
        parameters={"alpha": Parameter(0.25, 0, MOST, "evenness, times the labels' shares")},
    ),
    "cflgt-1": _cflgt(5, 2),
    "cflgt-2": _cflgt(5, 5),
    "cflgt-3": _cflgt(20, 3),
    "mix-4": Scenario(
        "four data sets with ten labels each", partition=partition.mix_4, **_SKEWED,
        parameters=_PICKED, classes=40, brings_data=True,
    ),
    "noise": Scenario(
        "Gaussian noise that grows from client to client", 20, "matched", partition.iid, shift.noise, grouped=False,
        by_label=False, of="uint8 images",
        parameters={"level": Parameter(0.1, 0, 1, "standard deviation at the last client, white = 1", "shift")},
    ),
}, group="umbel.scenarios", admit="umbel.data.scenarios:admitted")
SHORT = {  # flag-20 is flag:labels=0.2
    "flag": ("labels", 100), "label-skew": ("labels", 100),
    "dirichlet": ("alpha", 1), "dirichlet-clients": ("alpha", 1),
}  # fmt: skip


def admitted(name: str, thing: Any) -> Scenario:
    """A scenario that umbel did not bring, or the sentence that it is none."""
    if not isinstance(thing, Scenario):
        raise UmbelError(f"A scenario must be a umbel.data.scenarios.Scenario. Got '{name}', which is not.")
    return thing


def parse(text: str) -> list[tuple[str, dict[str, float]]]:
    """The names and the given parameters, checked; the one that brings the partition comes first."""
    parts = [_part(piece.strip()) for piece in text.split("+")]
    names = [name for name, _ in parts]
    partitions = [name for name in names if SCENARIOS[name].shift is None]
    if len(partitions) > 1:
        both = " and ".join(partitions)
        raise UmbelError(f"A scenario has one partition, with shifts added to it. Got {both} instead.")
    if twice := [name for name in names if names.count(name) > 1]:
        raise UmbelError(f"A scenario can be added once. Got '{twice[0]}' twice in '{text}'.")
    parts.sort(key=lambda part: part[0] not in partitions)
    for name, given in parts[1:]:
        if unused := [key for key in given if SCENARIOS[name].parameters[key].of == "partition"]:
            raise UmbelError(f"Here '{parts[0][0]}' deals out the rows. Got '{unused[0]}' for '{name}' instead.")
    return parts


def _part(piece: str) -> tuple[str, dict[str, float]]:
    name, _, rest = piece.partition(":")
    fields = [field.partition("=")[::2] for field in rest.split(",")] if rest else []
    short = re.fullmatch(r"(.+?)-([\d.]+)", name)
    if name not in SCENARIOS and short and short[1] in SHORT:
        name = short[1]
        key, unit = SHORT[name]
        fields.insert(0, (key, str(_number(name, key, short[2]) / unit)))
    if name not in SCENARIOS:
        raise unknown("scenario", name, [*SCENARIOS, *SCENARIOS.added])
    given: dict[str, float] = {}
    for key, value in fields:
        if key not in SCENARIOS[name].parameters:
            raise unknown(f"parameter of {name}", key, SCENARIOS[name].parameters)
        if key in given:
            raise UmbelError(f"The '{key}' of {name} can be given once. Got it twice in '{piece}'.")
        given[key] = _checked(name, key, _number(name, key, value))
    return name, given


def _number(name: str, key: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise UmbelError(f"The '{key}' of {name} must be a number. Got '{value}' instead.") from None


def _checked(name: str, key: str, value: float) -> float:
    default, low, high, *_ = SCENARIOS[name].parameters[key]
    if isinstance(default, int):
        if low <= value <= high and value == int(value):
            return int(value)
        raise UmbelError(f"The '{key}' of {name} must be a whole number from {low} to {high}. Got {value:g} instead.")
    if not low < value <= high:
        raise UmbelError(f"The '{key}' of {name} must be above {low:g} and at most {high:g}. Got {value:g} instead.")
    return value


def usual_clients(first: Scenario, rows: int) -> int:
    """How many clients a scenario has by default on so many training rows.

    What is dealt out by label leaves `ROWS_EACH` to each on average: fewer would leave a few rows of each label.
    """
    if first.brings_data or not first.by_label or rows >= first.clients * ROWS_EACH:
        return first.clients
    most = max(1, rows // ROWS_EACH)
    return max(4, most // 4 * 4, int(first.parameters["groups"].default) if "groups" in first.parameters else 0)


def usual(clients: object) -> str:
    """The scenario where nobody names one: natural for a set that has clients of its own."""
    return "natural" if clients else "iid"


def draw(
    scenario: str, dataset: Dataset, *, clients: int | None = None, seed: int = 0, test_mode: str | None = None
) -> Plan:
    """Deal the rows of a data set out to clients. The same arguments give the same plan on every machine."""
    parts = parse(scenario)
    first = SCENARIOS[parts[0][0]]
    count = (usual_clients(first, len(dataset.y_train)) or len(dataset.clients)) if clients is None else clients
    mode = first.test_mode if test_mode is None else test_mode
    if first.brings_data and dataset.name != parts[0][0]:
        raise UmbelError(f"{parts[0][0]} brings its own data sets; leave out --data. Got '{dataset.name}'.")
    for name, _ in parts:
        _fits(name, dataset)
    if first.by_label and not dataset.objective.groups:
        raise UmbelError(f"{parts[0][0]} deals rows out by label, and the targets of {dataset.name} have none: give the"
                         " objective bins, as in Regress(bins=4), or take iid.")
    if count < 1:
        raise UmbelError(f"The number of clients must be at least 1. Got {count} instead.")
    if mode not in (TEST_MODES | {OWN: None} if first.natural else TEST_MODES):
        raise unknown("test mode", mode, TEST_MODES)
    y_train, y_test = (dataset.objective.groups_of(y) for y in (dataset.y_train, dataset.y_test))
    validation: ClientRows | None = None
    if first.natural:
        drawn, own = _by_owner(dataset, count, seed)
        validation = _held_by(dataset, drawn.facts["names"])
    else:
        drawn = first.partition(y_train, count, generator(seed, "partition"), **_values(*parts[0], "partition"))
    shifts, truth, groups = _shifts(parts, drawn, y_train)
    train, test = own if mode == OWN else TEST_MODES[mode](
        y_train, y_test, drawn.rows, generator(seed, "test"))
    for i, both in enumerate(zip(train, test, strict=True)):
        if missing := [kind for kind, rows in zip(("training", "test"), both, strict=True) if not len(rows)]:
            raise UmbelError(
                "Every client needs a training row and a test row. Client"
                f" {drawn.facts['names'][i] if first.natural else i} of {count} has no {missing[0]} row "
                f"under '{scenario}' with test mode '{mode}'; ask for fewer clients or another test mode."
            )
    facts = {
        "scenario": scenario, "data": dataset.label, "clients": count, "seed": seed, "test_mode": mode,
        "groups": groups, **drawn.facts, "overlap": _overlap(train, test), "data_hash": dataset.digest,
        **({"understood": dict(dataset.understood)} if dataset.understood else {}),
        **({"ordered": True} if first.natural and dataset.ordered else {}),
        **({"late": [int(dataset.late[rows].sum()) for rows in train]} if first.natural and dataset.late is not None
           else {}),
    }  # fmt: skip
    return Plan(train, test, shifts, truth, dataset.classes, mode, facts, dealt=drawn.truth, validation=validation)


def _by_owner(dataset: Dataset, count: int, seed: int) -> tuple[Drawn, tuple[ClientRows, ClientRows]]:
    """What the set's clients train on, and this beside their own test rows, as the set parts them or as the seed does.

    Of fewer clients than there are, those with the most rows.
    """
    assert dataset.owners is not None
    if count > len(dataset.clients):
        raise UmbelError(f"{dataset.label} has {len(dataset.clients)} clients of its own. Got {count} instead.")
    of_train, of_test = dataset.owners
    sizes = np.bincount(of_train, minlength=len(dataset.clients))
    kept = np.sort(np.argsort(-sizes, kind="stable")[:count]).tolist()
    held = np.zeros(len(of_train), dtype=bool) if dataset.validation is None else dataset.validation
    rows, test = ([np.flatnonzero(of == k) for k in kept] for of in (np.where(held, -1, of_train), of_test))
    facts = {"names": [dataset.clients[k] for k in kept]}
    test = [len(of_train) + part for part in test]
    drawn = Drawn(rows, np.zeros(count, dtype=np.int64), 0, facts)
    if not dataset.redrawn:
        return drawn, (rows, test)
    kinds = np.concatenate([dataset.objective.groups_of(y) for y in (dataset.y_train, dataset.y_test)])
    return drawn, redrawn(kinds, [np.concatenate(both) for both in zip(rows, test, strict=True)], facts["names"], seed,
                          dataset.redrawn, in_one_piece=dataset.ordered)


def _held_by(dataset: Dataset, names: Sequence[str]) -> ClientRows | None:
    """The rows that are only for validation, of each of these clients."""
    if dataset.validation is None or dataset.owners is None:
        return None
    place = {name: k for k, name in enumerate(dataset.clients)}
    return [np.flatnonzero(dataset.validation & (dataset.owners[0] == place[name])) for name in names]


def _fits(name: str, dataset: Dataset) -> None:
    """Whether a data set has what a scenario changes, and enough kinds of target."""
    scenario, goal, x = SCENARIOS[name], dataset.objective, dataset.x_train
    images = x.ndim == 4
    there = {"": True, "images": images, "uint8 images": images and x.dtype == np.uint8, "labels": goal.classes > 0}
    if scenario.natural and dataset.owners is None:
        raise UmbelError(f"natural deals rows to the set's own clients, and {dataset.name} has none: name the column"
                         " that says whose a row is (--client-column), or take another scenario, such as iid.")
    if not scenario.natural and dataset.validation is not None:
        raise UmbelError(f"{name} deals rows anew or changes them, and some of {dataset.name} are only for validation:"
                         " take the scenario natural, or write train or test in their place.")
    if not there[scenario.of]:
        raise UmbelError(f"{name} changes {scenario.of}, and the set {dataset.name} has none: take a scenario that only"
                         " deals rows out, such as dirichlet.")
    if 0 < goal.groups < (least := scenario.classes):
        raise UmbelError(f"{name} needs at least {least} labels. Got {goal.groups} in {dataset.name} instead.")


def _values(name: str, given: Mapping[str, float], of: str) -> dict[str, Any]:
    known = SCENARIOS[name].parameters
    return {key: given.get(key, known[key].default) for key in known if known[key].of == of}


def _shifts(parts: list[tuple[str, dict[str, float]]], drawn: Drawn, y: IntArray) -> tuple[list[str], IntArray, int]:
    """Each client's shift, its true group (partition x shifts), and the number of groups.

    The first scenario assigns its shifts in its own way; each later one deals them in turn inside the groups so far.
    """
    shifts, truth, groups = [""] * len(drawn.rows), drawn.truth, drawn.groups
    for k, (name, given) in enumerate(parts):
        scenario = SCENARIOS[name]
        if scenario.shift is None:
            continue
        new = [""] * len(shifts)
        for group in np.unique(truth):
            members = np.flatnonzero(truth == group)
            kinds = scenario.shift(len(members), blocked=k == 0, **_values(name, given, "shift"))
            for i, kind in zip(members, kinds, strict=True):
                new[i] = shift.felt(kind, y[drawn.rows[i]])
        shifts = ["+".join(filter(None, pair)) for pair in zip(shifts, new, strict=True)]
        if scenario.grouped:
            truth = partition.first_seen(zip(truth, new, strict=True))
            groups = len(np.unique(truth))
        elif groups == 1:
            groups = 0
    return shifts, truth, groups


def _overlap(train: ClientRows, test: ClientRows) -> dict[str, int]:
    """Rows that two clients train on, are tested on, or that one trains on and another is tested on."""
    (trained, by), (tested, of) = (np.unique(np.concatenate(rows), return_counts=True) for rows in (train, test))
    both = np.intersect1d(trained, tested, assume_unique=True)
    return {"train": int((by > 1).sum()), "test": int((of > 1).sum()), "train_test": len(both)}


def mix4(load: Callable[[str], Dataset]) -> Dataset:
    """USPS, CIFAR-10, SVHN and Fashion-MNIST as one set of 40 labels and 3 x 32 x 32 pixels (PACFL's MIX-4)."""
    sets = {first: load(name) for name, first in OFFSETS.items()}
    return Dataset(
        "mix-4",
        np.concatenate([shift.colour_32(one.x_train) for one in sets.values()]),
        np.concatenate([one.y_train + first for first, one in sets.items()]),
        np.concatenate([shift.colour_32(one.x_test) for one in sets.values()]),
        np.concatenate([one.y_test + first for first, one in sets.items()]),
        classes=10 * len(sets),
        part=", ".join(one.label for one in sets.values() if one.part),
    )
