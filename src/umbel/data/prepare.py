"""What makes a raw table fit for a network: scaling, filling in, and codes for categories, as plain numbers.

A `Preparation` is made of sums that clients send (`federation/preparing.py`), or read from a file of an earlier run. It
is applied where the rows are. A missing number becomes the mean and says so in a column beside it; a category has one
level more than names were heard, for a missing value and for a name that no client had among its training rows.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from umbel.data.clients import IntArray, Pool, Population
from umbel.errors import UmbelError
from umbel.files import parse_json, read_bytes
from umbel.nets.objective import Objective, Regress, objective_of

SCALINGS = ("federated", "site", "none")
LARGEST = 2**26  # bytes of a file
MOST_COLUMNS = 2**20


class Sums(NamedTuple):
    """Of the numbers of some rows, column by column; means and deviations come of them."""

    known: NDArray[np.int64]  # values that are there
    sum: NDArray[np.float64]
    squares: NDArray[np.float64]

    @classmethod
    def of(cls, x: NDArray[Any]) -> "Sums":
        """Of these rows; NaN is missing."""
        wide = x.astype(np.float64)
        return cls((~np.isnan(wide)).sum(0), np.nansum(wide, 0), np.nansum(wide**2, 0))

    @property
    def moments(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Mean and standard deviation; 0 and 1 where nothing is there, and 1 where all values are one."""
        count = np.maximum(self.known, 1)
        mean = self.sum / count
        variance = np.maximum(self.squares / count - mean**2, 0)
        spread = variance > 1e-12 * np.maximum(1e-12, mean**2)  # what rounding leaves of a constant is none
        return mean, np.where(spread, np.sqrt(variance), 1.0)


@dataclass(frozen=True)
class Column:
    """How one column is prepared."""

    name: str
    mean: float = 0.0
    std: float = 1.0
    missing: bool = False  # a number that some client missed among its training rows: a column beside it says where
    levels: tuple[int, ...] | None = None  # of a category: the values that were heard, ascending; None = a number


@dataclass(frozen=True)
class Preparation:
    """How the raw rows of a table become inputs."""

    columns: tuple[Column, ...]
    scaling: str = "federated"
    objective: Objective | None = None  # what was learnt of the rows, with centre and scale of its numbers
    target: str = ""
    client: str = ""

    @classmethod
    def made(cls, names: Sequence[str], levels: Sequence[int], sums: Sums, missing: IntArray,
             heard: Mapping[int, Sequence[int]], scaling: str) -> "Preparation":
        """Of what clients told: sums of the columns that are numbers, missing values, and values of categories."""
        mean, std = sums.moments
        numbers = iter(range(len(mean)))
        columns = []
        for j, name in enumerate(names):
            if levels and levels[j]:
                columns.append(Column(name, levels=tuple(sorted(heard.get(j, ())))))
            else:
                k = next(numbers)
                own = (float(mean[k]), float(std[k])) if scaling == "federated" else (0.0, 1.0)
                columns.append(Column(name, *own, missing=bool(missing[k] > 0)))
        return cls(tuple(columns), scaling)

    @property
    def levels(self) -> tuple[int, ...]:
        """Of each input, as a network is told them; () where there is no category."""
        inputs = [0 if column.levels is None else len(column.levels) + 1 for column in self.columns]
        return (*inputs, *[0] * len(self._indicated)) if any(inputs) else ()

    @property
    def inputs(self) -> tuple[str, ...]:
        """The name of each input: the columns, then one for each that says where a value is missing."""
        return (*(column.name for column in self.columns), *(f"{self.columns[j].name}?" for j in self._indicated))

    @property
    def numbers(self) -> list[int]:
        """Positions of the columns that are numbers."""
        return [j for j, column in enumerate(self.columns) if column.levels is None]

    @property
    def _indicated(self) -> list[int]:
        return [j for j, column in enumerate(self.columns) if column.missing]

    def applied(self, x: NDArray[Any], own: NDArray[Any] | None = None) -> NDArray[np.float32]:
        """Raw rows as inputs. `own` are the training rows of the site, by which it scales where each does so itself."""
        if x.ndim != 2 or x.shape[1] != len(self.columns):
            raise UmbelError(f"Rows that are to be prepared must have the {len(self.columns)} columns of the"
                             f" preparation. Got the shape {x.shape} instead.")
        out = np.empty((len(x), len(self.inputs)), dtype=np.float32)
        numbers = self.numbers
        mean, std = np.array([[self.columns[j].mean, self.columns[j].std] for j in numbers]).reshape(-1, 2).T
        if self.scaling == "site" and own is not None:
            mean, std = Sums.of(own[:, numbers]).moments
        elif self.scaling == "none" and own is not None:
            mean = Sums.of(own[:, numbers]).moments[0]  # what is filled in; it is not taken away
        for k, j in enumerate(numbers):
            value = x[:, j].astype(np.float64)
            if self.scaling == "none":
                out[:, j] = np.where(np.isnan(value), mean[k], value)
            else:
                out[:, j] = np.nan_to_num((value - mean[k]) / std[k], nan=0.0)
        for j, column in enumerate(self.columns):
            if column.levels is not None:
                out[:, j] = _codes(x[:, j], column.levels)
        for k, j in enumerate(self._indicated):
            out[:, len(self.columns) + k] = np.isnan(x[:, j])
        return out

    # As a file

    def described(self) -> dict[str, Any]:
        """What preparation.json holds."""
        about = asdict(replace(self, objective=None))
        about["columns"] = [{name: value for name, value in column.items() if value is not None}
                            for column in about["columns"]]
        return {"preparation": 1, **about, "objective": None if self.objective is None else self.objective.described()}

    @classmethod
    def of(cls, about: Any, file: object) -> "Preparation":
        """Read back what `described` gave; anything else is refused by the name of its file."""
        try:
            if about["preparation"] != 1 or about["scaling"] not in SCALINGS or len(about["columns"]) > MOST_COLUMNS:
                raise ValueError("it is of another kind")
            goal = about["objective"]
            made = cls(tuple(_column(**column) for column in about["columns"]), about["scaling"],
                       None if goal is None else objective_of(goal), str(about["target"]), str(about["client"]))
        except (KeyError, TypeError, ValueError, LookupError, AttributeError, OverflowError) as error:
            reason = " ".join(str(error).split()).rstrip(".")[:200]
            raise UmbelError(f"{file} must be a preparation as umbel wrote it. It is not: {reason}.") from error
        return made

    @classmethod
    def read(cls, path: str | Path) -> "Preparation":
        """The preparation of an earlier run, from a file that a person named."""
        return cls.of(parse_json(read_bytes(Path(path), LARGEST, follow=True), f"The file {path}"), f"The file {path}")

    def json(self) -> bytes:
        """The file."""
        return (json.dumps(self.described(), indent=2, allow_nan=False) + "\n").encode()


def _column(name: str, mean: float = 0.0, std: float = 1.0, missing: bool = False,
            levels: Sequence[int] | None = None) -> Column:
    keys = None if levels is None else tuple(int(key) for key in levels)
    sound = float(std) > 0 and bool(np.isfinite([mean, std]).all())
    if not isinstance(name, str) or type(missing) is not bool or not sound:
        raise ValueError(f"the column '{name}' has a mean, a deviation above 0, and says whether values are missing")
    if keys is not None and any(b <= a for a, b in pairwise(keys)):
        raise ValueError(f"the levels of '{name}' do not ascend")
    return Column(name, float(mean), float(std), missing, keys)


def _codes(values: NDArray[Any], levels: tuple[int, ...]) -> IntArray:
    """The place of each value among the levels; behind the last, what is missing or was heard of nobody."""
    keys = np.array([*levels, np.inf], dtype=np.float64)
    place = np.searchsorted(keys[:-1], np.nan_to_num(values.astype(np.float64), nan=np.inf))
    codes: IntArray = np.where(keys[place] == values, place, len(levels)).astype(np.int64)
    return codes


def prepared(people: Population, how: Preparation) -> Population:
    """The clients with inputs instead of raw rows. Where each scales by itself, none shares a row with another."""
    goal = people.objective
    if isinstance(how.objective, Regress) and isinstance(goal, Regress):
        goal = how.objective
    if how.scaling == "federated":
        ready = replace(people, pool=people.pool._replace(x=how.applied(people.pool.x)),
                        objective=goal)
    else:
        ready = replace(_apart(people, how), objective=goal)
    return replace(ready, levels=how.levels, columns=())


def _apart(people: Population, how: Preparation) -> Population:
    """Each client with its own copies of its rows, scaled by its own training rows."""
    train, test, validation = list(people.train), list(people.test), people.validation and list(people.validation)
    changes = list(people.changes)
    parts: list[Pool] = []
    at = 0
    for i, own in enumerate(people.train):
        later = [k for k, change in enumerate(changes) if change.client == i]
        held = np.unique(np.concatenate([own, people.test[i], *(rows for k in later for rows in changes[k][2:4]),
                                         *([] if validation is None else [validation[i]])]))
        mine = people.pool.take(held)
        parts.append(mine._replace(x=how.applied(mine.x, people.pool.x[own])))
        train[i], test[i] = (at + np.searchsorted(held, rows) for rows in (own, people.test[i]))
        if validation is not None:
            validation[i] = at + np.searchsorted(held, validation[i])
        for k in later:
            change = changes[k]
            moved = [at + np.searchsorted(held, rows) for rows in (change.train, change.test)]
            changes[k] = change._replace(train=moved[0], test=moved[1])
        at += len(held)
    return replace(people, pool=Pool.joined(parts), train=train, test=test, changes=tuple(changes),
                   validation=validation)
