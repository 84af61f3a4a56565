"""What a scenario drew, as row numbers and names only: it can be saved, and made into clients again."""

import io
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from umbel.data import shift
from umbel.data.clients import NEVER, Change, IntArray, Pool, Population, Weights
from umbel.data.partition import ClientRows
from umbel.data.shift import Images
from umbel.data.sources import Dataset
from umbel.errors import UmbelError
from umbel.fields import check, choice, number
from umbel.files import make_folder, parse_json, read_npz, there, write_atomically

SCHEMA = 2  # of the file; a plan of schema 1 has no events, and does not say how the partition alone groups
MOST_CLIENTS = 2**20  # of a plan that is read, and groups, changes and labels: more are a damaged file
MOST_ROWS = 2**40  # of a data set; whether it has a row is known when the plan is realised
DEEPEST = 8  # lists in lists among the facts of a plan


@dataclass(frozen=True)
class Event:
    """Something that happens to one client while a run goes on. A change says what is other from its round on."""

    kind: str = choice("change", "join", "leave", "change")
    round: int = number(1, ge=1, le=10**9)
    client: int = number(0, ge=0)  # its position in the plan
    shift: str | None = None  # instead of the client's own, not on top of it
    train: IntArray | None = None  # rows, counted as the plan's
    test: IntArray | None = None
    group: int | None = number(None, ge=0, le=10**9)  # its true group

    def __post_init__(self) -> None:
        check(self, "an event")
        says = [self.shift, self.train, self.test, self.group]
        if (self.kind == "change") == all(value is None for value in says):
            raise UmbelError("A change says what changes, its shift, train, test or group, and a join or leave says"
                             f" nothing of them. Got a {self.kind} of client {self.client} in round {self.round}.")


@dataclass(frozen=True)
class Plan:
    """What a scenario drew. Rows count through the training set, then on through the test set."""

    train: ClientRows
    test: ClientRows
    shift: list[str]  # one a client, for its training and test rows alike
    truth: IntArray  # (clients,)
    classes: int  # 0 where the targets are none
    test_mode: str
    facts: dict[str, Any]  # JSON; `groups` is 0 where there are no true groups
    events: tuple[Event, ...] = ()
    dealt: IntArray | None = None  # (clients,) the group by the partition alone, without shifts; None = not known
    validation: ClientRows | None = None  # rows that are only for this; None = a share of the training rows is drawn

    def __post_init__(self) -> None:
        if self.validation is not None and (any(self.shift) or any(each.kind == "change" for each in self.events)):
            raise UmbelError("Clients whose data say which rows are for validation keep all their rows as they are:"
                             " leave out the change, or the words for validation.")
        comings: dict[tuple[str, int], int] = {}
        for event in self.events:
            if event.client >= len(self.train):
                raise UmbelError(f"The clients of this plan are 0 to {len(self.train) - 1}. Got an event of client"
                                 f" {event.client}.")
            if event.kind != "change" and comings.setdefault((event.kind, event.client), event.round) != event.round:
                raise UmbelError(f"A client comes once and goes once. Got two events '{event.kind}' of client"
                                 f" {event.client}.")
        for (kind, client), round in comings.items():
            if kind == "join" and comings.get(("leave", client), round + 1) <= round:
                raise UmbelError(f"A client goes after it came. Client {client} joins in round {round} and leaves in"
                                 f" round {comings['leave', client]}.")


class _Holding(NamedTuple):
    """What a client holds from a round on, as rows of the data set."""

    round: int
    client: int
    shift: str
    train: IntArray
    test: IntArray
    group: int


def _holdings(plan: Plan) -> list[_Holding]:
    """What everybody holds at the start, then what changes, by round; of one round only what counts in the end."""
    start = [_Holding(0, i, *own) for i, own in
             enumerate(zip(plan.shift, plan.train, plan.test, plan.truth.tolist(), strict=True))]
    last = dict(enumerate(start))
    later: dict[tuple[int, int], _Holding] = {}
    for event in sorted((event for event in plan.events if event.kind == "change"), key=lambda event: event.round):
        given = {name: value for name in ("shift", "train", "test", "group")
                 if (value := getattr(event, name)) is not None}
        last[event.client] = last[event.client]._replace(round=event.round, **given)
        later[event.round, event.client] = last[event.client]
    return [*start, *later.values()]


def _digest_of_targets(dataset: Dataset) -> str:
    """What plans say of their data that were drawn before its pixels counted."""
    digest = blake2b(f"{dataset.name} {len(dataset.y_train)} ".encode(), digest_size=8)
    for y in (dataset.y_train, dataset.y_test):
        digest.update(np.ascontiguousarray(y, dtype="<f4" if y.dtype.kind == "f" else "<i8").data)
    return digest.hexdigest()


def realise(plan: Plan, dataset: Dataset) -> Population:
    """The clients of a plan; their pool has each (row, shift) once."""
    drawn_on, known = plan.facts.get("data", "another data set"), plan.facts.get("data_hash")
    if known not in (dataset.digest, _digest_of_targets(dataset)) or plan.classes != dataset.classes:
        if drawn_on == dataset.label and dataset.understood:  # a file of one's own
            raise UmbelError(f"The rows of {drawn_on} were changed since this partition was drawn: their digest was"
                             f" {known}, and is {dataset.digest}. Put the old files back, or start again in"
                             " another folder.")
        raise UmbelError(f"A plan fits only the rows it was drawn on: {drawn_on}, whose digest is {known}. Got"
                         f" {dataset.label} with {dataset.digest} instead. Give it the same files (--data-dir), or draw"
                         " a new partition in another folder.")
    holdings = _holdings(plan)
    for holding in holdings:
        _check_rows(holding, len(dataset.y_train) + len(dataset.y_test))
    for holding, held in zip(holdings, plan.validation or (), strict=False):
        _check_rows(holding._replace(train=held), len(dataset.y_train) + len(dataset.y_test))
        if np.isin(held, np.concatenate([holding.train, holding.test])).any():
            raise UmbelError(f"Rows for validation serve nothing else. Client {holding.client} trains or is tested on"
                             " some of its own.")
    try:
        return _realised(plan, dataset, holdings)
    except MemoryError as error:
        raise UmbelError("The clients of this plan need more memory than is free here, with"
                         f" {len({holding.shift for holding in holdings}):,} kinds of shift over the rows of"
                         f" {dataset.label}.") from error


def _realised(plan: Plan, dataset: Dataset, holdings: list[_Holding]) -> Population:
    train: ClientRows = [np.empty(0, dtype=np.int64)] * len(holdings)
    test: ClientRows = list(train)
    pools: list[Pool] = []
    start = 0
    for kind in dict.fromkeys(holding.shift for holding in holdings):  # one pool for each kind of shift, in a line
        members = [k for k, holding in enumerate(holdings) if holding.shift == kind]
        rows = np.unique(np.concatenate([*(part for k in members for part in (holdings[k].train, holdings[k].test)),
                                         *(plan.validation or ())]))  # which there are only where nobody has a shift
        for k in members:
            train[k] = start + np.searchsorted(rows, holdings[k].train)
            test[k] = start + np.searchsorted(rows, holdings[k].test)
        validation = plan.validation and [np.searchsorted(rows, held) for held in plan.validation]
        pools.append(Pool(*shift.apply(kind, *_take(dataset, rows), rows), _weights(dataset, rows)))
        start += len(rows)
    pool = Pool.joined(pools)
    if dataset.objective.classes and pool.y.max() >= plan.classes:
        raise UmbelError(f"A swap is of labels in 0 .. {plan.classes - 1}. Got one that makes a label"
                         f" {pool.y.max()}.")
    n = len(plan.train)
    changes = tuple(Change(holding.round, holding.client, train[k], test[k], holding.group)
                    for k, holding in enumerate(holdings) if k >= n)
    return Population(
        pool, train[:n], test[:n], plan.truth, dataset.objective, list(plan.facts.get("names", [])), facts=plan.facts,
        levels=dataset.levels, columns=dataset.columns, ordered=plan.facts.get("ordered") is True, changes=changes,
        late=_late(plan.facts.get("late"), len(plan.train)),
        joins=_rounds(plan, "join", 0), leaves=_rounds(plan, "leave", NEVER), validation=validation,
    )


def _late(counts: Any, clients: int) -> tuple[int, ...]:
    """How many of each client's last training rows are for validation, where a plan says so."""
    sound = isinstance(counts, list) and len(counts) == clients and all(type(count) is int for count in counts)
    return tuple(max(0, count) for count in counts) if sound else ()


def _rounds(plan: Plan, kind: str, otherwise: int) -> IntArray | None:
    """The round in which each client joins or leaves; None where nobody does."""
    found = {event.client: event.round for event in plan.events if event.kind == kind}
    return np.array([found.get(i, otherwise) for i in range(len(plan.train))]) if found else None


def _check_rows(holding: _Holding, size: int) -> None:
    """Rows are rows of the data set, some to train on and some to be tested on, after a change none for both."""
    def good(rows: IntArray) -> bool:
        rows = np.asarray(rows)
        whole = rows.ndim == 1 and len(rows) > 0 and np.issubdtype(rows.dtype, np.integer)
        return whole and 0 <= int(rows.min()) <= int(rows.max()) < size

    rows_are_good = good(holding.train) and good(holding.test)
    if rows_are_good and not (holding.round and np.isin(holding.test, holding.train).any()):
        return
    raise UmbelError(
        f"{'A change leaves a client' if holding.round else 'A client holds'} training rows and other rows to be tested"
        f" on, numbers from 0 to {size - 1}. Got other rows for client {holding.client} in round {holding.round}."
    )


def _take(dataset: Dataset, rows: IntArray) -> tuple[Images, IntArray]:
    """Ascending rows of (training set, then test set)."""
    size = len(dataset.y_train)
    old, new = rows[rows < size], rows[rows >= size] - size
    x = np.concatenate([dataset.x_train[old], dataset.x_test[new]])
    return x, np.concatenate([dataset.y_train[old], dataset.y_test[new]])


def _weights(dataset: Dataset, rows: IntArray) -> Weights | None:
    """Of the same rows; test rows, which nobody trains on, have 1."""
    if dataset.weights is None:
        return None
    return np.concatenate([dataset.weights, np.ones(len(dataset.y_test), dtype=np.float32)])[rows]


def save_plan(path: str | Path, plan: Plan) -> None:
    """Write a plan as npz; a file that is there already is replaced only when the new one is whole."""
    make_folder(Path(path).parent)
    write_atomically(Path(path), plan_bytes(plan))


def plan_bytes(plan: Plan) -> bytes:
    """A plan as npz. Equal plans give equal bytes."""
    events = [{name: np.asarray(value).tolist() if name in ("train", "test") and value is not None else value
               for name, value in asdict(event).items()} for event in plan.events]
    about = {"plan": SCHEMA, "classes": plan.classes, "test_mode": plan.test_mode, "facts": plan.facts,
             "events": events}
    arrays: dict[str, Any] = {"truth": plan.truth, "shift": np.array(plan.shift), "about": np.array(json.dumps(about))}
    if plan.dealt is not None:
        arrays["dealt"] = plan.dealt
    for which, rows in (("train", plan.train), ("test", plan.test), ("validation", plan.validation or ())):
        if not rows:
            continue
        arrays[f"{which}_rows"] = np.concatenate(rows)
        arrays[f"{which}_ends"] = np.cumsum([len(part) for part in rows])
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def load_plan(path: str | Path) -> Plan:
    """Read what `save_plan` wrote; a number that no plan can have is refused."""
    path = Path(path)
    if not there(path):
        raise UmbelError(f"There is no partition file '{path}'.")
    arrays = read_npz(path, follow=True)
    try:
        return _plan(arrays, parse_json(str(arrays["about"]), f"'about' in '{path}'"))
    except UmbelError:
        raise
    except KeyError as error:
        raise UmbelError(f"'{path}' must be a partition that umbel saved. It has no {error}.") from None
    except (ValueError, TypeError, AttributeError, OverflowError, MemoryError) as error:
        reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        raise UmbelError(f"'{path}' must be a partition that umbel saved. It is not: {reason}.") from None


def _plan(arrays: Mapping[str, Any], about: Any) -> Plan:
    schema, classes, mode, facts = (about[name] for name in ("plan", "classes", "test_mode", "facts"))
    if schema not in (1, SCHEMA) or not isinstance(mode, str) or not isinstance(facts, dict) or _deep(facts):
        raise ValueError(f"'about' says nothing that is known here, in schema {str(schema)[:20]}")
    if type(classes) is not int or not 0 <= classes < MOST_CLIENTS:
        raise ValueError(f"'classes' is no number of classes: {str(classes)[:20]}")
    events = tuple(_event(**event) for event in _few("events", about["events"])) if schema == SCHEMA else ()
    train, test = (_parts(which, arrays) for which in ("train", "test"))
    truth = _whole("truth", arrays["truth"], MOST_CLIENTS)
    dealt = _whole("dealt", arrays["dealt"], MOST_CLIENTS) if "dealt" in arrays else None
    kinds = _few("shift", arrays["shift"].tolist())
    held = _parts("validation", arrays) if "validation_rows" in arrays else None
    for part in (test, truth, kinds, *(each for each in (dealt, held) if each is not None)):
        if len(part) != len(train):
            raise ValueError(f"it speaks of {len(train)} clients and of {len(part)}")
    for kind in {*kinds, *(event.shift for event in events if event.shift is not None)}:
        shift.must_be_known(kind)
    return Plan(train, test, kinds, truth, classes, mode, facts, events, dealt, held)


def _event(train: list[int] | None, test: list[int] | None, **rest: Any) -> Event:
    """An event again, from JSON."""
    rows = [None if part is None else _whole("event", np.array(part), MOST_ROWS) for part in (train, test)]
    return Event(**rest, train=rows[0], test=rows[1])


def _parts(which: str, arrays: Mapping[str, Any]) -> ClientRows:
    """One array a client again, from all rows in a line and where each client's end."""
    rows = _whole(f"{which}_rows", arrays[f"{which}_rows"], MOST_ROWS)
    ends = _whole(f"{which}_ends", arrays[f"{which}_ends"], MOST_ROWS)
    _few(f"{which}_ends", ends)
    if not len(ends) or ends[-1] != len(rows):
        raise ValueError(f"'{which}_ends' does not end where the rows do")
    if not len(rows) or (np.diff(ends, prepend=0) < 1).any():
        raise ValueError(f"'{which}_ends' leaves a client without rows")
    return np.split(rows, ends[:-1])


def _whole(name: str, array: Any, most: int) -> IntArray:
    """A line of whole numbers, none below 0: numpy would count such ones from the end."""
    if array.ndim != 1 or array.dtype.kind not in "iu" or (len(array) and not 0 <= array.min() <= array.max() < most):
        raise ValueError(f"'{name}' must be whole numbers from 0 to {most - 1:,}")
    whole: IntArray = array.astype(np.int64)
    return whole


def _few(name: str, values: Any) -> Any:
    if len(values) > MOST_CLIENTS:
        raise ValueError(f"'{name}' has {len(values):,} parts, more than {MOST_CLIENTS:,}")
    return values


def _deep(value: Any, left: int = DEEPEST) -> bool:
    """Whether lists and tables lie in one another without end."""
    inner: Iterable[Any] = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return left == 0 or any(_deep(each, left - 1) for each in inner)
