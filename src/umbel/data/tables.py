"""Tables of one's own: CSV, Parquet and frames, as rows of float32 with the reasons for everything that was understood.

Numbers stay as they are and missing values are NaN until `prepare` has seen to them. A category is stored as a hash of
its name, a whole number that float32 has exactly: sites need not agree on a list of names before they can speak of one.
A file is read in parts, so a large one needs the memory of its numbers and no more.
"""

import gzip
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from umbel.data.clients import IntArray
from umbel.data.formats import reading
from umbel.data.rows import HEAVIEST
from umbel.errors import UmbelError, unknown
from umbel.fields import refuse_names
from umbel.files import opened
from umbel.nets.objective import Classify, Objective, Regress
from umbel.seeds import generator

Array = NDArray[Any]
AT_ONCE = 50_000  # rows of a part
WORDS = ("test", "train", "validation")  # of a column that splits a table
AIMS = ("classify", "regress")  # what may be said of the target of a table
FEW = 20  # different whole numbers that are still taken for classes
MOST_LEVELS = 1000  # of a category: more are names of rows, not kinds of them
MISSING = ("?",)  # beside those that pandas knows: empty, NA, NaN, null, None ...
CSV, PARQUET = (".csv", ".csv.gz", ".tsv", ".tsv.gz"), (".parquet", ".pq")
_DATE = r"\s*(\d{4}-\d{1,2}-\d{1,2}|\d{1,2}[./]\d{1,2}[./]\d{2,4}|\d{4}/\d{1,2}/\d{1,2})([ T]\d{1,2}:.*)?\s*"


@dataclass(frozen=True)
class Asked:
    """What a person says of a table; all else is understood from it."""

    client: str | None = None  # the column that says whose a row is
    target: str | None = None
    objective: "str | Objective | None" = None  # classify or regress, instead of what the target looks like
    drop: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()  # columns of whole numbers that are names
    split: str = "rows"  # or time:COLUMN, column:NAME
    test_share: float = 0.25
    weight: str | None = None  # the column by which the losses of training rows are multiplied

    def __post_init__(self) -> None:
        kind, _, name = self.split.partition(":")
        if (kind, bool(name)) not in {("rows", False), ("time", True), ("column", True)}:
            raise UmbelError("The 'split' of a table must be rows, time:COLUMN or column:NAME."
                             f" Got '{self.split}' instead.")
        if not 0 < self.test_share < 1:
            raise UmbelError(f"The 'test_share' of a table must be between 0 and 1. Got {self.test_share} instead.")
        if isinstance(self.objective, str) and self.objective not in AIMS:
            raise UmbelError(f"The 'objective' of a table must be {' or '.join(AIMS)}. Got '{self.objective}' instead.")

    @property
    def order(self) -> str | None:
        """The column that a split goes by: no input."""
        return self.split.partition(":")[2] or None

    @property
    def by_time(self) -> bool:
        """Whether the last rows of a client are its test rows, and the last before them are for validation."""
        return self.split.startswith("time:")

    @property
    def named(self) -> tuple[str, ...]:
        """Columns that are no inputs, in the order in which their absence is told."""
        return tuple(name for name in (self.client, self.target, self.order, self.weight) if name is not None)


class Part(NamedTuple):
    """Some rows of one file: a frame, the client where the file says it, the number of its first row."""

    frame: Any
    client: str | None
    first: int


@dataclass
class Table:
    """All rows of a table in memory, each column in one kind of number."""

    name: str
    x: NDArray[np.float32]  # (rows, columns): numbers, hashes of categories, NaN where a value is missing
    columns: tuple[str, ...]
    levels: tuple[int, ...]  # of each column: 0 = a number, k = a category with k names
    clients: tuple[str, ...]  # in the order of their names; () where nobody says whose the rows are
    owner: IntArray  # (rows,) position in `clients`
    target: "Target"
    order: Array | None  # (rows,) moments, by which a client's rows are in order; or the place of a row's word in WORDS
    about: dict[str, Any] = field(default_factory=dict)  # what was understood, as JSON
    weight: NDArray[np.float32] | None = None  # (rows,) of the loss; None = all rows count alike


class Target(NamedTuple):
    """What is to be learnt: numbers, or codes of names."""

    values: Array
    names: tuple[str, ...]  # () = numbers
    texts: bool  # the names were texts, not whole numbers


# Parts of files


def pandas_or_say() -> Any:
    """pandas, or the sentence that says how to get it."""
    try:
        return import_module("pandas")
    except ImportError as error:
        raise UmbelError("Tables need the package pandas: pip install 'umbel[tables]'.") from error


def is_table(path: str | Path) -> bool:
    """Whether a file's name says that it is a table."""
    return str(path).lower().endswith((*CSV, *PARQUET))


def parts_of(path: Path, client: str | None = None) -> Iterator[Part]:
    """A file of a table in parts. Rows are counted from 1, the first below the header."""
    pandas = pandas_or_say()
    if not str(path).lower().endswith(PARQUET):
        with opened(path, follow=True) as file, reading(path, "CSV"):
            packed = "gzip" if file.read(2) == b"\x1f\x8b" else None
            file.seek(0)
            first = (gzip.GzipFile(fileobj=file) if packed else file).readline(2**20)
            file.seek(0)
            parts = pandas.read_csv(file, sep=_separator(first), dtype=str, chunksize=AT_ONCE, na_values=list(MISSING),
                                    compression=packed, skipinitialspace=True, encoding="utf-8-sig", index_col=False)
            yield from _numbered(parts, client)
        return
    try:
        parquet = import_module("pyarrow.parquet")
    except ImportError as error:
        raise UmbelError("Parquet needs the package pyarrow: pip install 'umbel[tables]'.") from error
    with opened(path, follow=True) as file, reading(path, "Parquet"):
        batches = parquet.ParquetFile(file).iter_batches(AT_ONCE)
        yield from _numbered((batch.to_pandas() for batch in batches), client)


def _separator(line: bytes) -> str:
    """What stands most often in a header: comma, semicolon or tab."""
    return max((b",", b";", b"\t"), key=line.count).decode()


def _numbered(frames: Iterable[Any], client: str | None) -> Iterator[Part]:
    first = 1
    for frame in frames:
        yield Part(frame, client, first)
        first += len(frame)


# Columns


def hashed(name: str) -> int:
    """24 bits of a name, which float32 has exactly. It shortens a name; who guesses the name finds it again."""
    return int.from_bytes(blake2b(name.encode(), digest_size=3).digest(), "little")


class _Column:
    """One input, as far as it was read."""

    def __init__(self, name: str, where: str, declared: bool, otherwise: str = "") -> None:
        self.name, self.where, self.declared = name, where, declared
        self.kind = "category" if declared else otherwise  # "": not known before a value was seen
        self.parts: list[NDArray[np.float32]] = []
        self.names: dict[str, int] = {}
        self.missing = 0
        self.least, self.most = np.inf, -np.inf

    def take(self, series: Any, first: int) -> None:
        """Some more rows."""
        kind, values = _values(series, self.name, self.where, first, self.kind, self.declared)
        self.kind = self.kind or kind
        self.parts.append(self._numbers(values, first) if kind == "number" else self._hashes(values))
        self.missing += int(np.isnan(self.parts[-1]).sum())

    def _numbers(self, values: Array, first: int) -> NDArray[np.float32]:
        with np.errstate(over="ignore"):
            narrow = values.astype(np.float32)
        if np.isinf(narrow).any():
            row = int(np.flatnonzero(np.isinf(narrow))[0])
            raise UmbelError(f"The column '{self.name}' of {self.where} must hold finite float32. Got {values[row]} in"
                             f" row {first + row}.")
        known = narrow[~np.isnan(narrow)]
        if len(known):
            self.least, self.most = min(self.least, float(known.min())), max(self.most, float(known.max()))
        return narrow

    def _hashes(self, values: Array) -> NDArray[np.float32]:
        codes, names = pandas_or_say().factorize(values)  # -1 = missing
        refuse_names(names, f"The texts in the column '{self.name}' of {self.where}")
        for name in names:
            self.names.setdefault(name, hashed(name))
        if len(self.names) > MOST_LEVELS:
            raise UmbelError(f"The column '{self.name}' of {self.where} has more than {MOST_LEVELS:,} different texts,"
                             f" and a category has fewer: leave it out (drop '{self.name}').")
        if len(set(self.names.values())) < len(self.names):
            raise UmbelError(f"Two names in the column '{self.name}' of {self.where} have the same hash: change the"
                             " spelling of one of them.")
        keys = np.array([*(self.names[name] for name in names), np.nan], dtype=np.float32)
        taken: NDArray[np.float32] = keys[codes]
        return taken

    @property
    def constant(self) -> str:
        """Why a model learns nothing of it, or nothing."""
        if not self.kind or (not self.names and self.least == np.inf):
            return "no value"
        only = len(self.names) == 1 if self.names else self.least == self.most
        return "one value" if only and not self.missing else ""


def _values(series: Any, name: str, where: str, first: int, kind: str, declared: bool) -> tuple[str, Array]:
    """"number" with float64, or "category" with texts and None; what is neither is refused with its row.

    `kind` is what the rows before were, "" where none had a value.
    """
    pandas = pandas_or_say()
    if series.dtype.kind in "mM":
        raise _date(name, where, first, series.iloc[0])
    if series.dtype.kind in "iuf" and not declared:
        numbers = series.to_numpy(dtype=np.float64, na_value=np.nan)
        if kind == "category" and not np.isnan(numbers).all():
            row = int(np.flatnonzero(~np.isnan(numbers))[0])
            raise _mixed(name, where, "texts", first + row, series.iloc[row])
        return kind or "number", numbers if kind != "category" else np.full(len(series), None, dtype=object)
    there = series.notna().to_numpy()
    texts = np.full(len(series), None, dtype=object)
    texts[there] = [str(value).strip() for value in series[there]]
    parsed = pandas.to_numeric(pandas.Series(texts), errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    parsed = np.where(there & (series.dtype.kind != "b"), parsed, np.nan)  # True is no 1
    is_number = there & ~np.isnan(parsed)
    if declared:
        whole = is_number & (parsed % 1 == 0)  # 3 and 3.0 are one name
        texts[whole] = [str(int(value)) for value in parsed[whole]]
        return "category", texts
    if not there.any():
        return kind, np.full(len(series), np.nan) if kind != "category" else texts
    if not is_number.any() and pandas.Series(texts[there]).str.fullmatch(_DATE).all():
        raise _date(name, where, first + int(np.flatnonzero(there)[0]), texts[there][0])
    mostly = kind or ("number" if 2 * is_number.sum() >= there.sum() else "category")
    others = np.flatnonzero(there & (~is_number if mostly == "number" else is_number))
    if len(others):
        words = "numbers" if mostly == "number" else "texts"
        raise _mixed(name, where, words, first + int(others[0]), texts[others[0]])
    return mostly, parsed if mostly == "number" else texts


def _mixed(name: str, where: str, mostly: str, row: int, value: Any) -> UmbelError:
    return UmbelError(f"The column '{name}' of {where} must hold numbers or texts, not both. It has {mostly}, and"
                      f" '{value}' in row {row}: correct that, name the column among the categories, or drop it.")


def _date(name: str, where: str, row: int, value: Any) -> UmbelError:
    return UmbelError(f"The column '{name}' of {where} holds dates, as '{value}' in row {row}, and a model takes"
                      " numbers: give the hours since an event, the month, or the year; or drop the column.")


# Tables


def read(paths: Sequence[tuple[str | None, Path]], asked: Asked, name: str,
         known: Mapping[str, bool] | None = None) -> Table:
    """The table in one file, or in one for each client, (client, path)."""
    return gathered((part for client, path in paths for part in parts_of(path, client)), asked, name, known)


def gathered(parts: Iterable[Part], asked: Asked, name: str, known: Mapping[str, bool] | None = None) -> Table:
    """A table out of its parts. `known` are columns that others agreed on, and whether each is a category: they are the
    inputs then, whatever else there is, and stay although one may be constant here.
    """
    pandas = pandas_or_say()
    inputs: dict[str, _Column] = {}
    owners: list[Array] = []
    orders: list[Array] = []
    weights: list[Array] = []
    goal = _Goal(asked, name, known is not None)
    whose: dict[str, int] = {}
    header: list[str] | None = None
    rows = 0
    for frame, client, first in parts:
        columns = [str(column) for column in frame.columns]
        if header is None:
            header = columns
            refuse_names(header, f"The columns of {name}")
            _refuse_absent(asked, header, name, client, known or ())
            inputs = {column: _Column(column, name, column in asked.categories) for column in header
                      if column not in (*asked.named, *asked.drop)}
            if known is not None:
                inputs = {column: _Column(column, name, category, "number") for column, category in known.items()}
        if columns != header:
            other = next(iter({*columns} ^ {*header}), "another order")
            raise UmbelError(f"All parts of {name} must have the same columns, in one order. Those of"
                             f" '{client or first}' differ: {other}.")
        frame = frame.set_axis(columns, axis=1)
        for column, reader in inputs.items():
            reader.take(frame[column], first)
        goal.take(frame[asked.target], first)
        if client is not None or asked.client is not None:
            owners.append(_whose(frame, asked.client, client, first, name, whose))
        if asked.order is not None:
            orders.append(_order(pandas, frame[asked.order], asked, name, first))
        if asked.weight is not None:
            weights.append(_weights(frame[asked.weight], asked.weight, name, first))
        rows += len(frame)
    if not rows:
        raise UmbelError(f"A table needs rows, and {name} has none.")
    return _joined(inputs, goal, owners, orders, weights, whose, name, rows, known is not None)


def _refuse_absent(asked: Asked, header: list[str], name: str, client: str | None, known: Iterable[str]) -> None:
    if asked.target is None:
        raise UmbelError(f"Say what is to be learnt of {name}, as in --target-column {header[-1]} (target=...)."
                         f" Its columns are {', '.join(header[:12])}{' ...' if len(header) > 12 else ''}.")
    for column in (*asked.named, *asked.drop, *asked.categories, *known):
        if column not in header:
            raise unknown(f"column in {name} named", column, header)
    if asked.client is not None and client is not None:
        raise UmbelError(f"Each file of {name} is a client: leave out the client column. Got '{asked.client}'.")


def _whose(frame: Any, column: str | None, client: str | None, first: int, name: str, whose: dict[str, int]) -> Array:
    if column is None:
        return np.full(len(frame), whose.setdefault(str(client), len(whose)), dtype=np.int32)
    codes, names = pandas_or_say().factorize(frame[column])
    refuse_names(map(_said, names), f"The clients in the column '{column}' of {name}")
    if (codes < 0).any():
        raise UmbelError(f"Every row of {name} must say whose it is. Row {first + int(np.flatnonzero(codes < 0)[0])}"
                         f" has no '{column}'.")
    places = np.array([whose.setdefault(_said(each), len(whose)) for each in names], dtype=np.int32)
    taken: Array = places[codes]
    return taken


def _said(value: Any) -> str:
    """A name as people write it: 3, not 3.0."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value).strip()


def _weights(series: Any, column: str, name: str, first: int) -> Array:
    numbers: Array = pandas_or_say().to_numeric(series, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    if len(wrong := np.flatnonzero(~((numbers >= 0) & (numbers < HEAVIEST)))):
        raise UmbelError(f"The weights in the column '{column}' of {name} must be numbers from 0 and below"
                         f" {HEAVIEST:,}. Got '{series.iloc[wrong[0]]}' in row {first + int(wrong[0])}.")
    weights: Array = numbers.astype(np.float32)
    return weights


def _order(pandas: Any, series: Any, asked: Asked, name: str, first: int) -> Array:
    if asked.split.startswith("column:"):
        words = series.astype(str).str.strip().str.lower().to_numpy(dtype=str)
        if len(wrong := np.flatnonzero(~np.isin(words, WORDS))):
            raise UmbelError(f"The column '{asked.order}' of {name} must hold train, validation or test. Got"
                             f" '{series.iloc[wrong[0]]}' in row {first + int(wrong[0])}.")
        return np.asarray(np.searchsorted(WORDS, words))
    moments = pandas.to_numeric(series, errors="coerce") if series.dtype.kind not in "mM" else series
    if moments.isna().all() or series.dtype.kind in "mM":
        dates = pandas.to_datetime(series, errors="coerce", utc=True, format="ISO8601")
        moments = (dates - pandas.Timestamp(0, tz="UTC")) / pandas.Timedelta(1, "s")
    if len(wrong := np.flatnonzero(moments.isna())):
        raise UmbelError(f"The column '{asked.order}' of {name} must hold numbers or dates as 2024-12-31. Got"
                         f" '{series.iloc[wrong[0]]}' in row {first + int(wrong[0])}.")
    return np.asarray(moments, dtype=np.float64)


class _Goal:
    """The target, as far as it was read."""

    def __init__(self, asked: Asked, where: str, known: bool) -> None:
        self.asked, self.where = asked, where
        self.known_names = known and isinstance(asked.objective, Classify)  # a site may have one class of many
        self.kind = ""
        self.parts: list[Array] = []

    @property
    def regress(self) -> bool:
        """Whether numbers are asked for."""
        return self.asked.objective == "regress" or isinstance(self.asked.objective, Regress)

    def take(self, series: Any, first: int) -> None:
        """Some more rows."""
        name = str(self.asked.target)
        kind, values = _values(series, name, self.where, first, self.kind, self.known_names)
        self.kind = self.kind or kind
        if kind == "category" and self.regress:
            row = next(k for k, value in enumerate(values) if value is not None)
            raise UmbelError(f"The target '{name}' of {self.where} must hold numbers for a regression. Got"
                             f" '{values[row]}' in row {first + row}.")
        self.parts.append(values)

    def known(self) -> NDArray[np.bool_]:
        """(rows,) whether there is something to be learnt."""
        found: NDArray[np.bool_] = np.concatenate(
            [~np.isnan(part) if part.dtype.kind == "f" else np.array([value is not None for value in part], dtype=bool)
             for part in self.parts])
        return found

    def target(self, known: NDArray[np.bool_]) -> Target:
        """Codes of classes in the order of their names, or numbers."""
        values = np.concatenate(self.parts)[known]
        if self.kind == "category":
            names, codes = np.unique(values.astype(str), return_inverse=True)
            refuse_names(names.tolist(), f"The texts in the column '{self.asked.target}' of {self.where}")
            return self._several(Target(codes.astype(np.int64), tuple(names.tolist()), True))
        values = values.astype(np.float64)
        if self.regress:
            return Target(values.astype(np.float32), (), False)
        different = np.unique(values)
        whole = bool((different % 1 == 0).all())
        wanted = self.asked.objective == "classify" or isinstance(self.asked.objective, Classify)
        if wanted and (not whole or len(different) > MOST_LEVELS):
            odd = different[different % 1 != 0][:1].tolist() or [f"{len(different):,} different numbers"]
            raise UmbelError(f"The target '{self.asked.target}' of {self.where} must hold texts, or at most"
                             f" {MOST_LEVELS:,} whole numbers, to be classified. Got {odd[0]}.")
        if wanted or (whole and len(different) <= FEW):
            codes = np.searchsorted(different, values).astype(np.int64)
            return self._several(Target(codes, tuple(str(int(value)) for value in different), False))
        return Target(values.astype(np.float32), (), False)

    def _several(self, target: Target) -> Target:
        if len(target.names) < 2 and not self.known_names:
            raise UmbelError(f"The target '{self.asked.target}' of {self.where} must have two values or more. It is"
                             f" '{''.join(target.names)}' in all rows.")
        return target


def _joined(inputs: dict[str, _Column], goal: _Goal, owners: list[Array], orders: list[Array], weights: list[Array],
            whose: dict[str, int], name: str, rows: int, all_of_them: bool) -> Table:
    known = goal.known()
    if not known.any():
        raise UmbelError(f"The target '{goal.asked.target}' of {name} must have values. It has none.")
    kept_out = {column: why for column, reader in inputs.items() if (why := reader.constant) and not all_of_them}
    used = [reader for column, reader in inputs.items() if column not in kept_out]
    if not used:
        raise UmbelError(f"A table needs a column to learn from, with more than one value. {name} has none beside its"
                         " target and its clients.")
    x = np.empty((int(known.sum()), len(used)), dtype=np.float32)
    for k, reader in enumerate(used):
        x[:, k] = np.concatenate(reader.parts)[known]
        reader.parts = []  # nothing lies in memory twice
    target = goal.target(known)
    owner = np.concatenate(owners)[known] if owners else np.zeros(len(x), dtype=np.int32)
    clients = tuple(sorted(whose))
    place = np.array([clients.index(each) for each in whose] or [0], dtype=np.int64)
    about: dict[str, Any] = {
        "columns": {reader.name: _told(reader) for reader in used}, "kept_out": kept_out,
        "target": {"name": goal.asked.target, **({"classes": list(target.names)} if target.names else {})},
        "rows": len(x), "rows_without_target": rows - len(x), "split": goal.asked.split,
    }
    about |= {"weight": goal.asked.weight} if weights else {}
    made = Table(name, x, tuple(reader.name for reader in used), tuple(len(reader.names) for reader in used), clients,
                 place[owner], target, np.concatenate(orders)[known] if orders else None, about,
                 np.concatenate(weights)[known] if weights else None)
    return _in_time(made) if goal.asked.by_time else made


def _in_time(table: Table) -> Table:
    """The rows of each client in the order of time, at the places where its rows were."""
    assert table.order is not None
    rows = np.empty(len(table.x), dtype=np.int64)
    rows[np.argsort(table.owner, kind="stable")] = np.lexsort((table.order, table.owner))
    return replace(table, x=table.x[rows], target=table.target._replace(values=table.target.values[rows]),
                   order=table.order[rows], weight=None if table.weight is None else table.weight[rows])


def _told(reader: _Column) -> dict[str, Any]:
    kind = {"category": sorted(reader.names)[:FEW], "levels": len(reader.names)} if reader.names else {
        "least": reader.least, "most": reader.most}
    return {**kind, "missing": reader.missing}


# Splits


def tested(table: Table, asked: Asked, seed: int) -> NDArray[np.bool_]:
    """(rows,) which rows are for the test."""
    if asked.split.startswith("column:"):
        assert table.order is not None
        test: NDArray[np.bool_] = np.asarray(table.order) == WORDS.index("test")
    else:
        test = np.zeros(len(table.x), dtype=bool)
        rows_of = np.split(np.argsort(table.owner, kind="stable"), np.cumsum(np.bincount(table.owner))[:-1])
        for i, rows in enumerate(rows_of):
            if table.order is not None:
                last = rows[np.argsort(table.order[rows], kind="stable")]
                test[last[len(rows) - count_of(len(rows), asked.test_share):]] = True
            else:
                rng = generator(seed, "table", table.clients[i] if table.clients else "")
                test[_drawn(rows, table.target, asked.test_share, rng)] = True
    held = validation(table, asked)
    parts = {"train on": ~test & ~held, "be tested on": test, **({"be validated on": held} if held.any() else {})}
    _refuse_lost(table, parts)
    return test


def validation(table: Table, asked: Asked) -> NDArray[np.bool_]:
    """(rows,) which rows a column keeps for validation: nobody trains on them."""
    if not asked.split.startswith("column:"):
        return np.zeros(len(table.x), dtype=bool)
    held: NDArray[np.bool_] = np.asarray(table.order) == WORDS.index("validation")
    return held


def count_of(rows: int, share: float) -> int:
    """How many of some rows are for the test: one at least, and never all."""
    return min(rows - 1, max(1, round(share * rows)))


def _drawn(rows: IntArray, target: Target, share: float, rng: np.random.Generator) -> IntArray:
    """A share of one client's rows, of each class as near to it as whole rows allow."""
    kinds = target.values[rows] if target.names else np.zeros(len(rows), dtype=np.int64)
    shuffled = rng.permutation(len(rows))
    by_kind = shuffled[np.argsort(kinds[shuffled], kind="stable")]
    count = count_of(len(rows), share)
    picked = np.floor((np.arange(count) + rng.random()) * len(rows) / max(1, count)).astype(np.int64)
    return rows[by_kind[picked]]


def _refuse_lost(table: Table, parts: Mapping[str, NDArray[np.bool_]]) -> None:
    """Every client has a row in each part."""
    for part, rows in parts.items():
        count = np.bincount(table.owner[rows], minlength=max(1, len(table.clients)))
        if len(lost := np.flatnonzero(count == 0)):
            whole = int((table.owner == lost[0]).sum())
            of = f"'{table.clients[lost[0]]}'" if table.clients else table.name
            raise UmbelError(f"Every client needs a row to {part}, and {of} has none, of {whole} in all: add rows,"
                             " leave that client out, or join it with another.")


# What becomes of it


def objective_for(table: Table, asked: Asked) -> Objective:
    """What a model of this table is for. Centre and scale of numbers come when the clients have told their sums."""
    goal = asked.objective
    if isinstance(goal, Objective) and not (isinstance(goal, Classify) and not goal.labels):
        return goal
    if not table.target.names:
        return Regress(labels=(str(asked.target),))
    known = goal if isinstance(goal, Classify) else Classify(len(table.target.names))
    if known.classes != len(table.target.names):
        raise UmbelError(f"The target of {table.name} has {len(table.target.names)} classes. Got an objective with"
                         f" {known.classes}.")
    return replace(known, labels=table.target.names)

