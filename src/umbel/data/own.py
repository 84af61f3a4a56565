"""Data of one's own with clients of their own: a table, a folder with a file for each client, a frame, sets of Hugging
Face and of Flower. All become a `Dataset` that knows whose its rows are; the scenario `natural` deals by that.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from importlib import import_module
from os.path import isdir
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from umbel import plugins
from umbel.data import formats, tables
from umbel.data import rows as own_rows
from umbel.data.clients import Population
from umbel.data.prepare import Preparation
from umbel.data.rows import Half
from umbel.data.sources import Dataset
from umbel.data.tables import Asked, Part, Table
from umbel.errors import UmbelError
from umbel.files import opened, there
from umbel.nets.objective import Classify, Objective, Regress
from umbel.seeds import generator

Array = NDArray[Any]
PICTURES = (".png", ".jpg", ".jpeg")


def is_own(data: str | None) -> bool:
    """Whether `data` means a file or a folder with rows, and not a set by name or by a place in a file of code."""
    return data is not None and plugins.parted(data) is None and (tables.is_table(data) or isdir(data))


def from_frame(frame: Any, *, client: str, target: str, objective: str | Objective | None = None,
               drop: Sequence[str] = (), categories: Sequence[str] = (), split: str = "rows", test_share: float = 0.25,
               weight: str | None = None, seed: int = 0, name: str = "frame") -> Dataset:
    """A pandas frame whose column `client` says whose each row is, and `target` what is to be learnt (docs/data.md)."""
    asked = Asked(client, target, objective, tuple(drop), tuple(categories), split, test_share, weight)
    return _of_table(tables.gathered([Part(frame, None, 1)], asked, name), asked, seed)


def from_folder(path: str | Path, *, target: str | None = None, objective: str | Objective | None = None,
                drop: Sequence[str] = (), categories: Sequence[str] = (), split: str = "rows", test_share: float = 0.25,
                weight: str | None = None, seed: int = 0) -> Dataset:
    """A folder with an npz, CSV or Parquet file for each client, or a folder of pictures with one for each class."""
    asked = Asked(None, target, objective, tuple(drop), tuple(categories), split, test_share, weight)
    return open_own(path, asked, seed)


def from_huggingface(dataset: Any, *, client: str, target: str, objective: str | Objective | None = None,
                     drop: Sequence[str] = (), categories: Sequence[str] = (), split: str = "rows",
                     test_share: float = 0.25, weight: str | None = None, seed: int = 0) -> Dataset:
    """A `datasets.Dataset` with a column that says whose each row is: a table, or pictures with a label."""
    asked = Asked(client, target, objective, tuple(drop), tuple(categories), split, test_share, weight)
    return _of_sets([(None, dataset)], asked, seed, "huggingface")


def from_partitions(parts: Mapping[str, Any] | Iterable[Any], *, target: str, objective: str | Objective | None = None,
                    drop: Sequence[str] = (), categories: Sequence[str] = (), split: str = "rows",
                    test_share: float = 0.25, weight: str | None = None, seed: int = 0) -> Dataset:
    """Each partition a client: frames or `datasets.Dataset`s, by name or in a list, as of Flower's `load_partition`."""
    asked = Asked(None, target, objective, tuple(drop), tuple(categories), split, test_share, weight)
    if not isinstance(parts, Mapping):
        several = list(parts)
        parts = {f"{k:0{len(str(max(0, len(several) - 1)))}d}": part for k, part in enumerate(several)}
    if not parts:
        raise UmbelError("A federation needs at least one partition. Got none.")
    return _of_sets(list(parts.items()), asked, seed, "partitions")


def to_huggingface(data: Dataset | Population) -> Any:
    """A `datasets.DatasetDict` with a set for each client: its inputs, `target`, `client`, and whether a row is for the
    `test`. Joined, they are what Flower's NaturalIdPartitioner(partition_by="client") parts again.
    """
    sets = _huggingface()
    inputs, names, of = _by_client(data)
    shown = names if names and inputs[0][0].ndim == 2 else ()

    def one(name: str, x: Array, y: Array, test: Array) -> Any:
        columns = {column: x[:, j] for j, column in enumerate(shown)} if shown else {"x": list(x)}
        return sets.Dataset.from_dict({**columns, "target": y, "client": [name] * len(y), "test": test})

    return sets.DatasetDict({name: one(name, *rows) for name, rows in zip(of, inputs, strict=True)})


def _huggingface() -> Any:
    try:
        return import_module("datasets")
    except ImportError as error:
        raise UmbelError("Sets for Hugging Face need the package datasets: pip install 'umbel[hub]'.") from error


def _by_client(data: Dataset | Population) -> tuple[list[tuple[Array, Array, Array]], tuple[str, ...], list[str]]:
    """(inputs, targets, is it a test row) of each client, names of columns, names of clients."""
    if isinstance(data, Population):
        halves = [(np.concatenate([a, b]), len(a)) for a, b in zip(data.train, data.test, strict=True)]
        rows = [(data.pool.x[own], data.pool.y[own], np.arange(len(own)) >= trained) for own, trained in halves]
        return rows, data.columns, list(data.names)
    if data.owners is None:
        raise UmbelError(f"The set {data.name} does not say whose its rows are: draw clients first, and give those.")
    owner = np.concatenate(data.owners)
    x, y = np.concatenate([data.x_train, data.x_test]), np.concatenate([data.y_train, data.y_test])
    test = np.arange(len(y)) >= len(data.y_train)
    return [(x[owner == i], y[owner == i], test[owner == i]) for i in range(len(data.clients))], data.columns, list(
        data.clients)


# Files


def open_own(path: str | Path, asked: Asked, seed: int) -> Dataset:
    """The table at a path, or the clients in a folder."""
    place = Path(path).expanduser()
    if not there(place):
        raise UmbelError(f"There is no file or folder '{path}' with data.")
    if not place.is_dir():
        if not tables.is_table(place):
            raise UmbelError("Data of your own are a table (.csv, .csv.gz, .tsv, .parquet), or a folder"
                             f" with a file for each client. Got '{path}' instead.")
        return _of_table(_table(((None, place),), asked, place.name, _state(place)), asked, seed)
    children = sorted(child for child in place.iterdir() if not child.name.startswith("."))
    if children and all(child.is_dir() for child in children):
        return _of_halves({child.name: _pictures(child) for child in children}, asked, seed, place.name)
    if children and all(child.suffix == ".npz" for child in children):
        return _of_halves({child.stem: formats.client_npz(child) for child in children}, asked, seed, place.name)
    if children and all(tables.is_table(child) for child in children):
        named = tuple((child.name.split(".")[0], child) for child in children)
        return _of_table(_table(named, asked, place.name, *map(_state, children)), asked, seed)
    raise UmbelError(f"The folder '{path}' must hold one kind of thing, one for each client: npz files, tables, or"
                     f" folders of pictures. Got {', '.join(child.name for child in children[:4]) or 'nothing'}.")


def _state(path: Path) -> tuple[int, int]:
    """What changes when a file does."""
    found = path.stat()
    return found.st_mtime_ns, found.st_size


@lru_cache(maxsize=2)
def _table(paths: tuple[tuple[str | None, Path], ...], asked: Asked, name: str, *states: tuple[int, int]) -> Table:
    return tables.read(paths, asked, name)


def read_site(path: str | Path, preparation: Preparation | str | Path, *, split: str = "rows", test_share: float = 0.25,
              seed: int = 0) -> tuple[Half, Half | None]:
    """The training and test rows of one site's table, prepared as others were: for `load_data` of a Flower site."""
    how = preparation if isinstance(preparation, Preparation) else Preparation.read(preparation)
    if how.objective is None or not how.target:
        raise UmbelError("A preparation for a site's table must say what is learnt. This one names no target.")
    asked = Asked(None, how.target, how.objective, split=split, test_share=test_share)
    place = Path(path).expanduser()
    known = {column.name: column.levels is not None for column in how.columns}
    table = tables.read([(None, place)], asked, place.name, known)
    y = _targets(table, how.objective)
    if len(y) < 2:
        return (how.applied(table.x, table.x), y), None
    test = tables.tested(table, asked, seed)
    trained = ~test & ~tables.validation(table, asked)
    own = table.x[trained]
    return (how.applied(own, own), y[trained]), (how.applied(table.x[test], own), y[test])


# Sets


def _of_table(table: Table, asked: Asked, seed: int) -> Dataset:
    goal = tables.objective_for(table, asked)
    y, test = _targets(table, goal), tables.tested(table, asked, seed)
    held = tables.validation(table, asked)[~test]
    about = {**table.about, "client": asked.client or "file", "objective": goal.kind,
             "sites": _counts(table.clients, table.owner)}
    return Dataset(
        table.name, table.x[~test], y[~test], table.x[test], y[test], objective=goal,
        levels=table.levels if any(table.levels) else (), columns=table.columns, clients=table.clients,
        owners=(table.owner[~test], table.owner[test]) if table.clients else None, understood=about,
        validation=held if held.any() else None, ordered=asked.by_time,
        weights=None if table.weight is None else table.weight[~test],
    )


def _targets(table: Table, goal: Objective) -> Array:
    """Targets as the objective has them: classes in its own order."""
    named = table.target.names
    if named and isinstance(goal, Classify):
        return goal.check(np.array(named)[table.target.values], f"'{table.name}'")
    return goal.check(table.target.values, f"'{table.name}'")


def _counts(clients: Sequence[str], owner: Array) -> dict[str, int]:
    return dict(zip(clients, np.bincount(owner, minlength=len(clients)).tolist(), strict=True))


def _of_halves(given: Mapping[str, Sequence[Array]], asked: Asked, seed: int, name: str) -> Dataset:
    """Arrays of each client; where one brings no test rows, a share of its rows is drawn for that."""
    if asked.weight is not None:
        raise UmbelError(f"Weights of rows are a column of a table, and {name} has none. Got '{asked.weight}'.")
    gaps = {client: [np.isnan(x) if x.dtype.kind == "f" and x.ndim == 2 else None for x in arrays[::2]]
            for client, arrays in given.items()}
    whole = {client: [np.nan_to_num(part, nan=0.0) if k % 2 == 0 and gaps[client][k // 2] is not None else part
                      for k, part in enumerate(arrays)] for client, arrays in given.items()}
    goal: Any = asked.objective
    if goal == "regress" or (goal is None and any(arrays[1].dtype.kind == "f" for arrays in given.values())):
        goal = Regress()
    checked, goal, _ = own_rows.sites(whole, None if goal == "classify" else goal)
    xs: list[Array] = []
    ys: list[Array] = []
    tests: list[Array] = []
    for (client, halves), holes in zip(zip(given, checked, strict=True), gaps.values(), strict=True):
        for (x, _), hole in zip(halves, holes, strict=False):
            if hole is not None:
                x[hole] = np.nan
        rows = len(halves[0][1])
        test = np.concatenate([np.full(len(y), k == 1) for k, (_, y) in enumerate(halves)])
        if len(halves) == 1:
            if rows < 2:
                raise UmbelError(f"Every client needs a row to train on and one to be tested on, and '{client}' has"
                                 f" {rows} in all: add rows, or leave that client out.")
            order = generator(seed, "table", client).permutation(rows)
            test[order[: tables.count_of(rows, asked.test_share)]] = True
        xs.append(np.concatenate([x for x, _ in halves]))
        ys.append(np.concatenate([y for _, y in halves]))
        tests.append(test)
    x, y, test = (np.concatenate(parts) for parts in (xs, ys, tests))
    owner = np.repeat(np.arange(len(xs)), [len(part) for part in ys])
    columns = tuple(f"column {j}" for j in range(x.shape[1])) if x.ndim == 2 and x.dtype == np.float32 else ()
    about = {"shape": list(x.shape[1:]), "rows": len(x), "objective": goal.kind, "client": "file",
             "sites": _counts(list(given), owner)}
    return Dataset(name, x[~test], y[~test], x[test], y[test], objective=goal, columns=columns, clients=tuple(given),
                   owners=(owner[~test], owner[test]), understood=about)


def _pictures(client: Path) -> list[Array]:
    """The pictures of one client: a folder for each class, perhaps inside `train` and `test`."""
    halves = [client / "train", client / "test"] if (client / "train").is_dir() else [client]
    arrays: list[Array] = []
    for half in halves:
        found = [(path, folder.name) for folder in sorted(half.iterdir()) if folder.is_dir()
                 for path in sorted(folder.iterdir()) if path.suffix.lower() in PICTURES]
        if not found:
            raise UmbelError(f"The folder '{half}' must hold a folder of pictures (PNG, JPEG) for each class. It has"
                             " none.")
        pixels = [_pixels(path) for path, _ in found]
        other = next((k for k, each in enumerate(pixels) if each.shape != pixels[0].shape), None)
        if other is not None:
            raise UmbelError(f"All pictures must be of one size and kind. '{found[0][0]}' is {pixels[0].shape}, and"
                             f" '{found[other][0]}' is {pixels[other].shape}.")
        arrays += [np.stack(pixels), np.array([label for _, label in found])]
    return arrays


def _pixels(path: Path) -> Array:
    """(channels, height, width), uint8: one channel of grey, three of colours."""
    try:
        image = import_module("PIL.Image")
    except ImportError as error:
        raise UmbelError("Folders of pictures need the package pillow: pip install 'umbel[images]'.") from error
    with opened(path, follow=True) as file, formats.reading(path, "picture"), image.open(file) as picture:
        grey = picture.mode in ("1", "L")
        return _laid_out(np.asarray(picture.convert("L" if grey else "RGB")))


def _laid_out(pixels: Array) -> Array:
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def _of_sets(given: Sequence[tuple[str | None, Any]], asked: Asked, seed: int, name: str) -> Dataset:
    """Frames, or sets of Hugging Face; a set with a column of pictures is one of pictures."""
    features = dict(getattr(given[0][1], "features", None) or {})
    picture = next((column for column, kind in features.items() if type(kind).__name__ == "Image"), None)
    if picture is None:
        parts = (Part(part if hasattr(part, "iloc") else part.to_pandas(), client, 1) for client, part in given)
        return _of_table(tables.gathered(parts, asked, name), asked, seed)
    arrays: dict[str, list[Array]] = {}
    labels = getattr(features[str(asked.target)], "names", None)
    for client, part in given:
        x = np.stack([_laid_out(np.asarray(each)) for each in part[picture]])
        y = np.asarray(part[asked.target])
        y = np.array(labels)[y] if labels else y
        whose = np.full(len(y), client) if client is not None else np.array([str(each) for each in part[asked.client]])
        for each in np.unique(whose):
            arrays[str(each)] = [x[whose == each], y[whose == each]]
    made = _of_halves(dict(sorted(arrays.items())), asked, seed, name)
    if isinstance(made.objective, Classify) and labels and made.objective.labels != tuple(labels):
        return replace(made, understood={**made.understood, "classes": list(made.objective.labels)})
    return made

