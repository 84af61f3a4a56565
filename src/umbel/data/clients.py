"""Who holds what: one pool of rows, and for each client the rows it trains and is tested on.

A pool has each distinct (row, shift) once; clients are lists of row numbers into it. So a test set that a
hundred clients share is stored, copied to a GPU and scored once.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from umbel.data import rows as own_rows
from umbel.errors import UmbelError
from umbel.fields import bounded, refuse_names
from umbel.nets.objective import Objective, objective_of
from umbel.seeds import generator

IntArray = NDArray[np.int64]
Weights = NDArray[np.float32]
EPOCHS, STEPS, BATCH = 10_000, 1_000_000, 100_000  # of one round, at most: its batches are drawn before its first step
NEVER = np.iinfo(np.int64).max  # the round in which a client goes that stays


class Pool(NamedTuple):
    """All rows of a federation. uint8 pixels mean [0, 255]; float32 numbers and int64 tokens are taken as they are."""

    x: NDArray[Any]  # (rows, channels, height, width) of images, (rows, ...) of others
    y: NDArray[Any]  # (rows, ...) labels, numbers or tokens, as the objective has them
    weight: Weights | None = None  # (rows,) what a row's loss is multiplied by in training; None = 1

    def take(self, rows: IntArray) -> "Pool":
        """Some of the rows."""
        return Pool(*(None if part is None else np.asarray(part[rows]) for part in self))  # type: ignore[arg-type]

    @classmethod
    def joined(cls, pools: Sequence["Pool"]) -> "Pool":
        """All rows in a line. All pools have weights, or none."""
        weights = [pool.weight for pool in pools if pool.weight is not None]
        return cls(np.concatenate([pool.x for pool in pools]), np.concatenate([pool.y for pool in pools]),
                   np.concatenate(weights) if weights else None)


class Work(NamedTuple):
    """How much a client does when it is asked, and on which of its rows."""

    epochs: int = 0
    steps: int = 0  # instead of epochs: this many batches, however many rows there are
    batch: int = 10  # 0 = all rows at once
    rows: str = "train"  # train = fit + validation; test is for evaluation only

    def checked(self) -> "Work":
        """The same, once its numbers are known to be such that the batches can be drawn."""
        for name, most in (("epochs", EPOCHS), ("steps", STEPS), ("batch", BATCH)):
            bounded(getattr(self, name), name, "a client's work", ge=0, le=most)
        return self


class Change(NamedTuple):
    """From `round` on a client holds other rows, and belongs to this true group."""

    round: int
    client: int  # its position
    train: IntArray  # rows of the pool
    test: IntArray
    group: int


@dataclass(frozen=True)
class Moment:
    """The clients in one round: who is there, what they hold, where they truly belong."""

    present: NDArray[np.bool_]  # (n,)
    train: list[IntArray]
    test: list[IntArray]
    truth: IntArray  # (n,)


@dataclass(frozen=True)
class Population:
    """The clients of a federation, as a scenario drew them."""

    pool: Pool
    train: list[IntArray]  # rows of the pool, one array a client
    test: list[IntArray]
    truth: IntArray  # (n,) the true group of each client
    objective: Objective  # what a model is for; a number of classes stands for a classification
    names: list[str] = field(default_factory=list)  # c000, c001 ...: seeds follow names, not positions
    joins: IntArray | None = None  # (n,) the round in which each appears; None = all are there from the start
    leaves: IntArray | None = None  # (n,) the round from which each is gone; None = nobody goes
    facts: Mapping[str, Any] = field(default_factory=dict)  # what the result says of the data: set, part, per_label ...
    levels: tuple[int, ...] = ()  # of each column of a table: 0 = a number, k = a category with k levels; () = none
    columns: tuple[str, ...] = ()  # of a raw table, which is to be prepared first (prepare.py); () = rows are ready
    ordered: bool = False  # a client's training rows are in the order of time: its last ones are for validation
    late: tuple[int, ...] = ()  # of clients in the order of time: how many of each's last are for it; () = a tenth
    changes: tuple[Change, ...] = ()  # by round; of two that a client has in one round, the last counts
    validation: list[IntArray] | None = None  # rows only for this; None = a share of the training rows is drawn

    def __post_init__(self) -> None:
        object.__setattr__(self, "objective", objective_of(self.objective))
        for change in self.changes:
            if change.round < 1 or not 0 <= change.client < len(self.train):
                raise UmbelError("A change comes in round 1 or later, to one of the clients 0 to"
                                 f" {len(self.train) - 1}. Got round {change.round}, client {change.client}.")
        object.__setattr__(self, "changes", tuple(sorted(self.changes, key=lambda change: change.round)))
        if not self.names:
            object.__setattr__(self, "names", numbered(len(self.train)))
        refuse_names(self.names, "The names of clients")

    @classmethod
    def of_sites(cls, sites: Mapping[str, Sequence[Any]], objective: Objective | int | None = None,
                 truth: Sequence[int] | None = None, *, classes: int | None = None,
                 ordered: bool = False) -> "Population":
        """Your own clients: for each name (x_train, y_train), and (x_test, y_test) behind them if there are some.

        Inputs are images (rows, channels, height, width), uint8 or floats; tables (rows, columns) of floats; or tokens,
        int64. `objective` says what a model is for; a number, as `classes`, stands for a classification. Without it a
        classification is inferred from labels that are 0, 1, 2 ... or texts, and `facts["inferred"]` says which. Texts
        are numbered in sorted order over all sites (`objective.labels`). Floats become float32; nothing else is
        changed, and what does not fit is refused (docs/data.md). `truth` is the true group of each site, if you know
        it: it serves the oracle and the agreement scores. `ordered` says that rows are in the order of time, so that
        validation takes a site's last training rows.
        """
        if objective is not None and classes is not None:
            raise UmbelError("What a model is for is given once, as 'objective' or as 'classes'. Got both.")
        if truth is not None and len(truth) != len(sites):
            raise UmbelError(f"The truth has one group for each of the {len(sites)} sites. Got {len(truth)} instead.")
        checked, goal, inferred = own_rows.sites(sites, classes if objective is None else objective)
        halves = [half for site in checked for half in (site if len(site) == 2 else [*site, None])]
        ends = np.cumsum([0 if half is None else len(half[1]) for half in halves])
        rows = np.split(np.arange(ends[-1]), ends[:-1])
        x, y = (np.concatenate(parts) for parts in zip(*filter(None, halves), strict=True))
        known = np.zeros(len(sites), dtype=np.int64) if truth is None else np.asarray(truth, dtype=np.int64)
        facts: dict[str, Any] = {"groups": 0 if truth is None else len(set(truth))}
        facts |= {"inferred": inferred} if inferred else {}
        return cls(Pool(x, y), rows[0::2], rows[1::2], known, goal, [str(name) for name in sites], facts=facts,
                   ordered=ordered)

    def checked(self) -> "Population":
        """The same, with a pool as it must be; what does not fit is refused. A raw table may have gaps."""
        if self.columns:
            return self
        [(x, y)] = own_rows.site("the pool", self.pool[:2], self.objective)
        weight = None if self.pool.weight is None else own_rows.weights("the pool", self.pool.weight, len(y))
        return self if x is self.pool.x and y is self.pool.y else replace(self, pool=Pool(x, y, weight))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input: (channels, height, width) of an image."""
        return tuple(self.pool.x.shape[1:])

    def in_order(self, order: IntArray) -> "Population":
        """The same clients in another order; names stay where they are: place 0 is still called c000.

        Names that clients have in life go with them.
        """
        place = np.argsort(order)
        return replace(
            self, train=[self.train[i] for i in order], test=[self.test[i] for i in order], truth=self.truth[order],
            names=[self.names[i] for i in order] if "names" in self.facts else self.names,
            joins=None if self.joins is None else self.joins[order],
            leaves=None if self.leaves is None else self.leaves[order],
            changes=tuple(change._replace(client=int(place[change.client])) for change in self.changes),
            validation=self.validation and [self.validation[i] for i in order],
            late=self.late and tuple(self.late[i] for i in order),
        )

    @property
    def tokens(self) -> bool:
        """Whether inputs are whole numbers that stand for words."""
        return self.pool.x.dtype == np.int64

    @cached_property
    def kinds(self) -> IntArray:
        """(rows,) the label of each row of the pool, or the bin of its number."""
        return self.objective.groups_of(self.pool.y)

    @property
    def label_counts(self) -> IntArray:
        """(n, kinds) training rows of each client by label, after its shift (a swap changes labels), or by bin."""
        return np.stack([self.counted(rows) for rows in self.train])

    def counted(self, rows: IntArray) -> IntArray:
        """(kinds,) how many of these rows of the pool are of each label or bin."""
        return np.bincount(self.kinds[rows], minlength=max(1, self.objective.groups)).astype(np.int64)

    def present(self, round: int) -> NDArray[np.bool_]:
        """(n,) who can be asked in this round."""
        here = np.ones(len(self.train), dtype=bool)
        if self.joins is not None:
            here &= self.joins <= round
        if self.leaves is not None:
            here &= self.leaves > round
        return here

    @cached_property
    def _changes_of(self) -> dict[int, list[int]]:
        """The numbers of each client's changes, by round."""
        of: dict[int, list[int]] = {}
        for k, change in enumerate(self.changes):
            of.setdefault(change.client, []).append(k)
        return of

    def change_of(self, i: int, round: int) -> int | None:
        """The number of the change that client i lives under in this round; None before its first."""
        past = [k for k in self._changes_of.get(i, ()) if self.changes[k].round <= round]
        return past[-1] if past else None

    def at(self, round: int) -> Moment:
        """Who is there in this round, what they hold, and where they truly belong."""
        train, test, truth = list(self.train), list(self.test), self.truth.copy()
        for change in self.changes:
            if change.round <= round:
                train[change.client], test[change.client] = change.train, change.test
                truth[change.client] = change.group
        return Moment(self.present(round), train, test, truth)

    @property
    def hash(self) -> str:
        """Sixteen hex digits that change when any client's name, rows, shift or group changes."""
        digest = blake2b(digest_size=8)
        if self.ordered:  # other rows are for validation
            digest.update(f"ordered{list(self.late) or ''}".encode())
        if self.names != numbered(len(self.train)):  # seeds follow names
            digest.update(json.dumps(self.names).encode())
        for array in (self.pool.x, self.pool.y, self.truth, *self.train, *self.test, *(self.validation or ())):
            digest.update(str((array.dtype.str, array.shape)).encode())
            digest.update(np.ascontiguousarray(array).data)
        if self.pool.weight is not None:
            digest.update(b"weights" + self.pool.weight.astype("<f4").tobytes())
        for change in self.changes:
            digest.update(str((change.round, change.client, len(change.train), change.group)).encode())
            digest.update(np.concatenate([change.train, change.test]).astype("<i8").data)
        return digest.hexdigest()

    def pooled(self) -> "Population":
        """One client per true group, with all its members' training rows: the federation of a centralised oracle.

        Tests are unchanged in sum: a group's test set is the union of its members'. Rows of several clients are in no
        order of time.
        """
        if self.changes:
            raise UmbelError("Only groups that stay the same can be pooled, and here clients change in round"
                             f" {self.changes[0].round}: leave out the changes, or the pooling.")
        groups = np.unique(self.truth)
        members = [np.flatnonzero(self.truth == group) for group in groups]

        def union(rows: list[IntArray]) -> list[IntArray]:
            return [np.unique(np.concatenate([rows[i] for i in inside])) for inside in members]

        return Population(
            self.pool, union(self.train), union(self.test), groups, self.objective,
            names=[f"group{group}" for group in groups], facts={**self.facts, "pooled": True}, levels=self.levels,
            columns=self.columns, validation=self.validation and union(self.validation),
        )


def numbered(clients: int) -> list[str]:
    """Names for clients that have none: c000, c001 ..."""
    width = max(3, len(str(clients - 1)))
    return [f"c{i:0{width}d}" for i in range(clients)]


def truth_at(truth: Sequence[int], changes: Iterable[tuple[int, int, int]], round: int) -> tuple[int, ...]:
    """The true groups in a round, of those at the start and of later changes, (round, client, group), by round."""
    groups = list(truth)
    for since, client, group in changes:
        if since <= round:
            groups[client] = group
    return tuple(groups)


def rows_of(train: IntArray, test: IntArray, which: str, seed: int, name: str, ordered: bool = False,
            late: int = 0) -> IntArray:
    """The rows of one client that `which` means: train, fit, validation or test.

    `fit` and `validation` part the training rows 90/10, the same way every time. They do so at random, and not inside
    each label: of twenty rows the two halves would share the mix, and every client would seem to be like nobody else.
    Where rows are in the order of time the last are for validation, `late` of them or a tenth: what is chosen is to
    serve rows that come later.
    """
    if which == "train":
        return train
    if which == "test":
        return test
    if which not in ("fit", "validation"):
        raise UmbelError(f"The rows of a client are train, fit, validation or test. Got '{which}' instead.")
    drawn = np.arange(len(train))[::-1] if ordered else generator(seed, "split", name).permutation(len(train))
    validation = np.zeros(len(train), dtype=bool)
    validation[drawn[: min(late, len(train) - 1) or _held_back(len(train))]] = True
    return train[validation] if which == "validation" else train[~validation]


def _held_back(rows: int, share: float = 0.1) -> int:
    """How many of a client's training rows are for validation: one at least, and never the only one."""
    return min(rows - 1, max(1, round(share * rows)))


def batches(rows: IntArray, work: Work, rng: np.random.Generator) -> IntArray:
    """The batches of one client, (steps, size), in order: each epoch is a fresh permutation.

    An epoch's last batch may be short: it ends in -1.
    """
    size = work.batch or len(rows)
    if not len(rows):
        return np.empty((0, size), dtype=np.int64)
    in_epoch = -(-len(rows) // size)
    epochs = -(-work.steps // in_epoch) if work.steps else work.epochs
    drawn = np.full((epochs, in_epoch * size), -1, dtype=np.int64)
    for epoch in drawn:
        epoch[: len(rows)] = rng.permutation(rows)
    return drawn.reshape(-1, size)[: work.steps or None]
