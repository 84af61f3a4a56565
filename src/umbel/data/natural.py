"""Sets whose clients are those of life: hospitals, people, stations, roles; from one npz file, or as published.

Nothing is learned of the rows here: what stands for a missing number, and what inputs are scaled by, are constants,
which were computed once, of all training rows of the whole set. A test row is never among them.
"""

import csv
import io
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from umbel.data.clients import IntArray
from umbel.data.formats import Array, npz, reading, together
from umbel.errors import UmbelError
from umbel.files import parse_json, read_bytes
from umbel.seeds import generator

TESTED = 0.25  # heart-disease, wisdm: the share of a client's rows of each class that it is tested on


class Natural(NamedTuple):
    """A set as it is dealt out in life."""

    x_train: Array
    y_train: Array
    x_test: Array
    y_test: Array
    clients: tuple[str, ...]
    owners: tuple[IntArray, IntArray]  # of training and test rows: the place of the row's client in `clients`
    late: NDArray[np.bool_] | None = None  # of the training rows: an owner's last ones, by which models are chosen


class _Rows(NamedTuple):
    """Rows as they were read, and whose they are."""

    x: Array
    y: Array
    owner: IntArray
    clients: tuple[str, ...]


FindNatural = Callable[[Path, bool, Path | None], Natural | None]
# the folder, whether its name names the set, and the compact npz in it


def _by_rows(name: str, rows: _Rows) -> Natural:
    """Of each class of each client a quarter to be tested on, drawn by a fixed seed; rows in the order of clients."""
    x, y, owner, clients = rows
    order = np.argsort(owner, kind="stable")
    x, y, owner = x[order], y[order], owner[order]
    rng, test = generator(name, "test"), np.zeros(len(y), dtype=bool)
    strata = owner * (y.max() + 1) + y
    for stratum in np.unique(strata):
        drawn = rng.permutation(np.flatnonzero(strata == stratum))
        test[drawn[: round(TESTED * len(drawn))]] = True
    return Natural(x[~test], y[~test], x[test], y[test], clients, (owner[~test], owner[test]))


def _table(path: Path, missing: Iterable[str] = ("?", "NA", "")) -> list[list[str]]:
    """The lines of a CSV file as texts; what means "missing" becomes "nan"."""
    with reading(path, "CSV"):
        lines = csv.reader(io.StringIO(read_bytes(path, follow=True).decode("latin-1")), skipinitialspace=True)
        absent = set(missing)
        return [["nan" if cell.strip() in absent else cell.strip() for cell in line] for line in lines if line]


def _numbers(path: Path, lines: list[list[str]]) -> NDArray[np.float32]:
    with reading(path, "CSV"):
        return np.array(lines, dtype=np.float64).astype(np.float32)


# Heart disease

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
HEART: dict[str, float | tuple[int, ...]] = {  # of a number what stands for a missing one, of a category its levels
    "age": 54.0, "sex": (0, 1), "cp": (1, 2, 3, 4), "trestbps": 130.0, "chol": 238.5, "fbs": (0, 1),
    "restecg": (0, 1, 2), "thalach": 140.0, "exang": (0, 1), "oldpeak": 0.5, "slope": (1, 2, 3), "ca": (0, 1, 2, 3),
    "thal": (3, 6, 7),
}
HEART_LEVELS = tuple(len(kind) + 1 if isinstance(kind, tuple) else 0 for kind in HEART.values())
NEVER_ZERO = ("trestbps", "chol")  # nobody lives without: a 0, as of all cholesterols in Switzerland, was not measured


def heart_disease(place: Path, named: bool, compact: Path | None) -> Natural | None:
    """The four processed.HOSPITAL.data of the UCI archive, 13 columns and the target; or one npz."""
    if compact:
        x, y, owner, names = npz(compact, ("x", "y", "client", "client_names"))
        read = _Rows(x, y.astype(np.int64), owner.astype(np.int64), tuple(names.tolist()))
    else:
        paths = together(place, *((f"processed.{hospital}.data",) for hospital in HOSPITALS))
        if not paths:
            return None
        parts = [_numbers(path, _table(path, ("?", "-9", "-9.0"))) for path in paths]
        if odd := [path for path, part in zip(paths, parts, strict=True) if part.shape[1:] != (len(HEART) + 1,)]:
            raise UmbelError(f"The file '{odd[0]}' must have {len(HEART) + 1} columns, the last one the target.")
        rows, owner = np.concatenate(parts), np.repeat(np.arange(len(parts)), [len(part) for part in parts])
        read = _Rows(rows[:, :-1], (rows[:, -1] > 0).astype(np.int64), owner, HOSPITALS)
    return _by_rows("heart-disease", read._replace(x=prepared_heart(read.x)))


def prepared_heart(x: Array) -> NDArray[np.float32]:
    """Numbers with a constant where one is missing; categories as codes, the last one for "missing"."""
    columns = []
    for (name, kind), column in zip(HEART.items(), x.T, strict=True):
        if isinstance(kind, tuple):
            code = np.searchsorted(kind, column).clip(max=len(kind) - 1)
            columns.append(np.where(np.array(kind)[code] == column, code, len(kind)))
        else:
            absent = np.isnan(column) | ((column == 0) & (name in NEVER_ZERO))
            columns.append(np.where(absent, kind, column))
    return np.stack(columns, 1).astype(np.float32)


# WISDM

ACTIVITIES = ("Walking", "Jogging", "Upstairs", "Downstairs", "Sitting", "Standing")
WISDM = (*(f"{axis}{k}" for axis in "XYZ" for k in range(10)),
         *(f"{axis}{what}" for what in ("AVG", "PEAK", "ABSOLDEV", "STANDDEV") for axis in "XYZ"), "RESULTANT")


def wisdm(place: Path, named: bool, compact: Path | None) -> Natural | None:
    """WISDM_ar_v1.1_transformed.arff, or one npz; a peak that was not found is filled in by the mean."""
    if compact:
        x, y, owner, names = npz(compact, ("x", "y", "client", "client_names"))
        read = _Rows(x, y.astype(np.int64), owner.astype(np.int64), tuple(map(_person, names.tolist())))
    else:
        paths = together(place, ("WISDM_ar_v1.1_transformed.arff",))
        if not paths:
            return None
        read = _arff(paths[0])
    filled = np.where(np.isnan(read.x), np.array(WISDM_MEAN), read.x).astype(np.float32)
    return _by_rows("wisdm", read._replace(x=filled))


def _person(number: int) -> str:
    return f"person {number:02d}"


def _arff(path: Path) -> _Rows:
    """Attributes by their names, whatever their order."""
    lines = _table(path)
    first = next((k for k, line in enumerate(lines) if line[0].lower() == "@data"), None)
    heads = [_attribute(line[0]) for line in lines[:first] if line[0].lower().startswith("@attribute ")]
    if first is None or not {*WISDM, "user", "class"} <= set(heads):
        raise UmbelError(f"The file '{path}' must be WISDM's ARFF file: the attributes user, X0 to RESULTANT and class,"
                         " then @data.")
    table = np.array([line for line in lines[first + 1 :] if len(line) == len(heads)])
    at = {name: k for k, name in enumerate(heads)}
    x = _numbers(path, table[:, [at[name] for name in WISDM]].tolist())
    people, owner = np.unique(table[:, at["user"]].astype(np.float64).astype(np.int64), return_inverse=True)
    place = {name: k for k, name in enumerate(ACTIVITIES)}
    with reading(path, "ARFF"):  # names of classes are quoted above @data, and not below
        y = np.array([place[each.strip("'\"")] for each in table[:, at["class"]].tolist()])
    return _Rows(x, y, owner, tuple(map(_person, people.tolist())))


def _attribute(line: str) -> str:
    """The name in a line as `@attribute "X0" numeric`, or `@attribute class{ "Walking" ...`, which has no space."""
    return line.split(None, 1)[1].partition("{")[0].split(None, 1)[0].strip("'\"")


# Beijing

MEASURES = ("PM2.5", "PM10", "SO2", "NO2", "CO", "O3", "TEMP", "PRES", "DEWP", "RAIN", "WSPM")
POLLUTANTS = 6  # the first of them; of these an input says where one was missing
WINDS = ("N", "NNE", "NE", "ENE", "E", "ESE", "SE", "SSE", "S", "SSW", "SW", "WSW", "W", "WNW", "NW", "NNW")
HOURS, AHEAD = 24, (1, 6, 24)
STRIDE = 13  # hours from one row to the next: prime to 24, so that rows begin at every hour of the day
TURN = np.datetime64("2016-01-01T00")  # rows whose targets lie before are trained on; those that end after are tests
CHOOSE = np.datetime64("2015-10-01T00")  # training rows with a target from here on choose, where models are chosen
Series = tuple[Array, Array, Array]  # hours as dates (T,), measures (T, 11), wind directions (T,), -1 = missing


def beijing_air(place: Path, named: bool, compact: Path | None) -> Natural | None:
    """The PRSA_Data_STATION_*.csv of the UCI archive, or one npz."""
    if compact:
        values, wind, owner, names, columns = npz(compact, ("values", "wind", "client", "client_names", "columns"))
        at = {name: k for k, name in enumerate(columns.tolist())}
        measured, when = values[:, [at[name] for name in MEASURES]], values[:, [at[name] for name in _WHEN]]
        stations = {str(name): (_dates(when[owner == k]), measured[owner == k], wind[owner == k])
                    for k, name in enumerate(names.tolist())}
    else:
        paths = sorted(place.glob("PRSA_Data_*.csv"))
        stations = dict(_station(path) for path in paths)
    if not stations:
        return None
    halves: list[list[Array]] = [[], [], [], []]
    owners: list[list[Array]] = [[], []]
    late: list[Array] = []
    for k, (name, series) in enumerate(stations.items()):
        _refuse_gaps(name, series[0])
        *parts, last = _windows(*series)
        late.append(last)
        for half, (x, y) in enumerate(parts):
            halves[2 * half].append(x)
            halves[2 * half + 1].append(y)
            owners[half].append(np.full(len(y), k))
    whole = [np.concatenate(parts) for parts in halves]
    own = np.concatenate(owners[0]), np.concatenate(owners[1])
    return Natural(whole[0], whole[1], whole[2], whole[3], tuple(stations), own, np.concatenate(late))


_WHEN = ("year", "month", "day", "hour")


def _dates(when: Array) -> Array:
    """Hours, from columns of year, month, day and hour."""
    year, month, day, hour = when.astype(np.int64).T
    months: Array = ((year - 1970) * 12 + month - 1).astype("datetime64[M]")
    hours: Array = months.astype("datetime64[h]") + ((day - 1) * 24 + hour).astype("timedelta64[h]")
    return hours


def _station(path: Path) -> tuple[str, Series]:
    head, *lines = _table(path) or [[]]
    at = {name: k for k, name in enumerate(head)}
    if missing := [name for name in (*_WHEN, *MEASURES, "wd", "station") if name not in at] or not lines:
        raise UmbelError(f"The file '{path}' must have the columns year to station and rows below them. Got none named"
                         f" {missing[0] if missing is not True else 'rows'}.")
    direction = {name: k for k, name in enumerate(WINDS)}
    wind = np.array([direction.get(line[at["wd"]], -1) for line in lines])
    picked = [[line[at[name]] for name in (*_WHEN, *MEASURES)] for line in lines]
    numbers = _numbers(path, picked)
    return lines[0][at["station"]], (_dates(numbers[:, :4]), numbers[:, 4:], wind)


def _refuse_gaps(name: str, hours: Array) -> None:
    gaps = np.flatnonzero(np.diff(hours) != np.timedelta64(1, "h"))
    if len(gaps):
        raise UmbelError(f"The hours of the station {name} must follow one another. After {hours[gaps[0]]} comes"
                         f" {hours[gaps[0] + 1]}.")


def _windows(hours: Array, measured: Array, wind: Array) -> tuple[tuple[Array, Array], tuple[Array, Array], Array]:
    """Training and test rows of one station: 24 hours, and PM2.5 so many hours after the last of them; which of the
    training rows choose.

    A row with a target that was not measured is left out.
    """
    ends = np.arange(HOURS - 1, len(hours) - max(AHEAD), STRIDE)
    y = np.stack([measured[ends + ahead, 0] for ahead in AHEAD], 1).astype(np.float32)
    known = np.isfinite(y).all(1)
    ends, y = ends[known], y[known]
    rows = sliding_window_view(hourly(hours, measured, wind), HOURS, axis=0)[ends - HOURS + 1].transpose(0, 2, 1)
    before, after = hours[ends + max(AHEAD)] < TURN, hours[ends] >= TURN
    train, test = ((np.ascontiguousarray(rows[half]), y[half]) for half in (before, after))
    return train, test, hours[ends[before] + max(AHEAD)] >= CHOOSE


def hourly(hours: Array, measured: Array, wind: Array) -> NDArray[np.float32]:
    """(T, 23) what is known of each hour: measures, scaled; which pollutants were missing; angles of wind, day, year.

    A missing measure is the last one before it, or the mean where there is none; a missing wind is no direction.
    """
    absent = np.isnan(measured)
    last = np.maximum.accumulate(np.where(absent, -1, np.arange(len(hours))[:, None]), axis=0)
    mean, std = np.array(BEIJING_MEAN), np.array(BEIJING_STD)
    filled = np.where(last < 0, mean, np.take_along_axis(measured, last.clip(min=0), axis=0))
    since = hours - hours.astype("datetime64[Y]")
    turns = [np.where(wind < 0, np.nan, wind / len(WINDS)), hours.astype(np.int64) % 24 / 24,
             since.astype(np.int64) / (24 * 365.25)]
    circles = [part for turn in turns for part in (np.sin(2 * np.pi * turn), np.cos(2 * np.pi * turn))]
    columns = [(filled - mean) / std, absent[:, :POLLUTANTS], np.nan_to_num(np.stack(circles, 1))]
    return np.concatenate(columns, axis=1).astype(np.float32)


# Shakespeare

LENGTH = 80
VOCABULARY = 97  # a line's end, the 95 printed characters of ASCII, and one for all others
LINE_END, OTHER = 0, VOCABULARY - 1
LEARNT = 0.8  # of a role's rows, in the order of the text


def shakespeare(place: Path, named: bool, compact: Path | None) -> Natural | None:
    """LEAF's all_data*.json in a folder named as the set, or one npz of speeches."""
    if compact:
        raw, start, end, owner, names = npz(compact, ("bytes", "start", "end", "client", "client_names"))
        said = _speeches(raw, start, end, owner, len(names))
        lines = {str(name): in_lines("\n".join(parts)) for name, parts in zip(names.tolist(), said, strict=True)}
    else:
        paths = sorted(place.glob("all_data*.json")) if named else []
        lines = {}
        for path in paths:
            read = _leaf(path)
            if twice := sorted({*lines} & {*read}):
                raise UmbelError(f"Each role must stand in one file of '{place}'. '{twice[0]}' stands in '{path.name}'"
                                 " and in one before it: leave LEAF's whole all_data.json there alone.")
            lines |= read
    lines = {name: rows for name, rows in lines.items() if len(rows) > 1}
    if not lines:
        return None
    parted = [np.split(rows, [min(len(rows) - 1, round(LEARNT * len(rows)))]) for rows in lines.values()]
    train, test = (np.concatenate(half) for half in zip(*parted, strict=True))
    learnt, tested = (np.repeat(np.arange(len(lines)), [len(part) for part in half])
                      for half in zip(*parted, strict=True))
    return Natural(train[:, :-1], train[:, 1:], test[:, :-1], test[:, 1:], tuple(lines), (learnt, tested))


def _speeches(raw: Array, start: Array, end: Array, owner: Array, roles: int) -> list[list[str]]:
    said: list[list[str]] = [[] for _ in range(roles)]
    for first, after, role in zip(start.tolist(), end.tolist(), owner.tolist(), strict=True):
        said[role].append(raw[first:after].tobytes().decode("latin-1"))
    return said


def tokens_of(text: str) -> IntArray:
    """Characters as numbers."""
    codes = np.frombuffer(text.encode("utf-32-le"), dtype="<u4").astype(np.int64)
    printed = (codes >= ord(" ")) & (codes <= ord("~"))
    return np.where(codes == ord("\n"), LINE_END, np.where(printed, codes - ord(" ") + 1, OTHER))


def in_lines(text: str) -> IntArray:
    """(rows, 81) a text in rows of 80 characters and the one that follows; what is left at its end is dropped."""
    tokens = tokens_of(text)
    if len(tokens) <= LENGTH:
        return np.empty((0, LENGTH + 1), dtype=np.int64)
    rows: IntArray = sliding_window_view(tokens, LENGTH + 1)[::LENGTH].copy()
    return rows


def _leaf(path: Path) -> dict[str, IntArray]:
    """Of LEAF's rows, which move on by one character, every 80th: they meet and do not overlap.

    A sample of them has gaps, and is refused; a role with less than a row is left out.
    """
    found: Any = parse_json(read_bytes(path, follow=True), f"The file '{path}'")
    try:
        lines = {str(name): [x + y for x, y in list(zip(data["x"], data["y"], strict=True))[::LENGTH]]
                 for name, data in found["user_data"].items()}
        if wrong := [name for name, rows in lines.items() if any(len(line) != LENGTH + 1 for line in rows)]:
            raise ValueError(f"the rows of {wrong[0]} are of another length")
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UmbelError(f"The file '{path}' must be LEAF's: user_data, with x of {LENGTH} characters and y of one for"
                         " each role.") from error
    for name, rows in lines.items():
        if any(line[-1] != after[0] for line, after in pairwise(rows)):
            raise UmbelError(f"The rows in '{path}' must move on by one character, as in LEAF's whole all_data.json."
                             f" Those of '{name}' do not: they are a sample.")
    return {name: np.stack([tokens_of(line) for line in rows]) for name, rows in lines.items() if rows}


# Constants, of all training rows

HEART_MEAN = (53.56, 0.0, 0.0, 132.0, 244.4, 0.0, 0.0, 138.1, 0.0, 0.8468, 0.0, 0.0, 0.0)  # codes are left alone
HEART_STD = (9.383, 1.0, 1.0, 18.19, 53.2, 1.0, 1.0, 24.89, 1.0, 1.075, 1.0, 1.0, 1.0)
WISDM_MEAN = (
    0.09299, 0.09811, 0.09748, 0.09659, 0.09847, 0.1004, 0.09842, 0.101, 0.1007, 0.09096, 0.09434, 0.0971, 0.09703,
    0.09673, 0.09842, 0.0984, 0.09965, 0.1011, 0.09982, 0.08106, 0.09525, 0.09704, 0.09594, 0.1005, 0.09633, 0.09915,
    0.101, 0.1007, 0.09951, 0.09335, 0.0, 7.123, 0.3767, 1834.0, 1064.0, 2022.0, 4.933, 4.043, 2.799, 6.11, 5.101, 6.11,
    11.51)
WISDM_STD = (  # XAVG is 0 in every row
    0.07127, 0.05537, 0.05707, 0.05121, 0.05113, 0.04892, 0.05012, 0.053, 0.06061, 0.08414, 0.05497, 0.05149, 0.05055,
    0.04884, 0.04926, 0.05309, 0.05493, 0.05644, 0.05716, 0.07931, 0.05697, 0.05147, 0.04426, 0.05489, 0.04477, 0.04962,
    0.05008, 0.04968, 0.04763, 0.07224, 1.0, 3.721, 2.195, 1012.0, 773.1, 1031.0, 2.764, 2.295, 1.574, 3.182, 2.616,
    3.182, 2.544)
BEIJING_MEAN = (81.83, 107.8, 17.84, 51.76, 1243.0, 58.35, 14.27, 1010.0, 3.509, 0.06388, 1.674)  # of MEASURES
BEIJING_STD = (80.17, 91.31, 23.68, 35.12, 1130.0, 57.74, 11.09, 10.21, 13.37, 0.8173, 1.24)

NATURAL: dict[str, FindNatural] = {
    "heart-disease": heart_disease, "wisdm": wisdm, "beijing-air": beijing_air, "shakespeare": shakespeare,
}
