"""The file formats in which image sets are handed on. A reader looks into one folder and returns raw pieces.

It returns None when the folder has none of its files, and says one sentence when some are missing or damaged.
Whether a piece fits the set (shape, dtype, labels) is not known here: `sources` checks that.
"""

import bz2
import gzip
import io
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from umbel.data import pickled
from umbel.errors import UmbelError
from umbel.files import most_unpacked, opened, read_bytes, read_npz, refuse_bomb, there

Array = NDArray[Any]


class Piece(NamedTuple):
    """Images and labels as they stand in one file; `where` names it in a sentence."""

    x: Array
    y: Array
    where: str


Halves = tuple[list[Piece], list[Piece]]  # training, test
Reader = Callable[[Path, bool], Halves | None]  # the folder, and whether its name names the set


@contextmanager
def reading(path: Path, kind: str) -> Iterator[None]:
    """Turn whatever a damaged file makes its reader raise into a sentence; zip, pickle, HDF5 have a dozen kinds."""
    try:
        yield
    except UmbelError:
        raise
    except MemoryError as error:
        raise UmbelError(f"The file '{path}' is larger than the memory that is free here.") from error
    except Exception as error:
        reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        raise UmbelError(f"The file '{path}' must be a whole and readable {kind} file. Got: {reason}.") from error


def together(place: Path, *choices: tuple[str, ...]) -> list[Path] | None:
    """Of each choice the first name that is there; None when the folder has none of any choice."""
    first = [next((place / name for name in names if _stands(place / name)), None) for names in choices]
    paths = [path for path in first if path]
    missing = [names[0] for names, path in zip(choices, first, strict=True) if not path]
    if paths and missing:
        raise UmbelError(f"The folder '{place}' must hold {' and '.join(missing)} beside {paths[0].name}. Got none.")
    return paths or None


def _stands(path: Path) -> bool:
    """Whether something to read has this name: a pipe or a lost link has, and is refused when it is read."""
    return there(path) and not path.is_dir()


def _members(path: Path, content: Any, names: tuple[str, ...]) -> list[Any]:
    """The named members of a mapping that was read from a file."""
    if missing := [name for name in names if name not in content]:
        raise UmbelError(f"The file '{path}' must hold {', '.join(names)}. Got none named {', '.join(missing)}.")
    return [content[name] for name in names]


# npz


def npz(path: Path, names: tuple[str, ...]) -> list[Array]:
    """The named arrays of an npz file; one that needs pickle is refused."""
    return _members(path, read_npz(path, names, follow=True), names)


def whole_npz(path: Path) -> Halves:
    """Both halves from one file with x_train, y_train, x_test and y_test."""
    x_train, y_train, x_test, y_test = npz(path, ("x_train", "y_train", "x_test", "y_test"))
    return [Piece(x_train, y_train, f"x_train in '{path}'")], [Piece(x_test, y_test, f"x_test in '{path}'")]


def client_npz(path: Path) -> list[Array]:
    """One client's rows: x_train and y_train, then x_test and y_test if it has test rows."""
    train, test = ("x_train", "y_train"), ("x_test", "y_test")
    arrays = read_npz(path, (*train, *test), follow=True)
    return _members(path, arrays, (*train, *test) if any(name in arrays for name in test) else train)


def kmnist(place: Path, named: bool) -> Halves | None:
    """KMNIST's own four npz files, each with one unnamed array."""
    pairs = [(f"kmnist-{half}-{what}.npz",) for half in ("train", "test") for what in ("imgs", "labels")]
    return _in_pairs(together(place, *pairs), lambda path: npz(path, ("arr_0",))[0])


# idx


def idx(place: Path, named: bool) -> Halves | None:
    """MNIST's four files. Fashion-MNIST and KMNIST use the same names: they count only in a folder named as the set."""
    if not named:
        return None
    choices = [
        tuple(f"{half}-{what}{sep}{kind}-ubyte{end}" for sep in "-." for end in ("", ".gz"))
        for half in ("train", "t10k") for what, kind in (("images", "idx3"), ("labels", "idx1"))
    ]
    return _in_pairs(together(place, *choices), _idx)


def _idx(path: Path) -> Array:
    with opened(path, follow=True) as file, reading(path, "idx"):
        size = os.fstat(file.fileno()).st_size
        packed = file.read(2) == b"\x1f\x8b"  # by content: browsers unpack .gz and keep the name
        file.seek(0)
        stream = gzip.GzipFile(fileobj=file) if packed else file
        head = stream.read(4)
        zero, kind, axes = struct.unpack(">HBB", head)
        if (zero, kind) != (0, 8):  # 8 = unsigned bytes
            raise UmbelError(f"The idx file '{path}' must begin with 00 00 08 (hex). Got {head[:3].hex(' ')} instead.")
        shape = struct.unpack(f">{axes}I", stream.read(4 * axes))
        announced = prod(shape)
        body = stream.read(min(announced, most_unpacked(size) if packed else size) + 1)
        if len(body) != announced:
            wanted, got = " x ".join(map(str, shape)), "more" if len(body) > announced else len(body)
            raise UmbelError(f"The idx file '{path}' must hold the {wanted} bytes it announces. Got {got} instead.")
        return np.frombuffer(body, np.uint8).reshape(shape)


def _in_pairs(paths: list[Path] | None, read: Callable[[Path], Array]) -> Halves | None:
    """Images and labels of the training half, then of the test half, each from its own file."""
    if not paths:
        return None
    x_train, y_train, x_test, y_test = paths
    return [Piece(read(x_train), read(y_train), f"'{x_train}'")], [Piece(read(x_test), read(y_test), f"'{x_test}'")]


# CIFAR: Python pickles

LARGEST_PICKLE = 2**29  # bytes; CIFAR-100's has 155 million


def cifar10(place: Path, named: bool) -> Halves | None:
    """data_batch_1 to data_batch_5, those that are there, and test_batch."""
    batches = [f"data_batch_{i}" for i in range(1, 6) if _stands(place / f"data_batch_{i}")]
    paths = together(place, *((name,) for name in batches or ["data_batch_1"]), ("test_batch",))
    return ([_cifar(path, "labels") for path in paths[:-1]], [_cifar(paths[-1], "labels")]) if paths else None


def cifar100(place: Path, named: bool) -> Halves | None:
    """`train` and `test`, fine labels; plain names, so only in a folder named as the set or beside CIFAR's `meta`."""
    paths = together(place, ("train",), ("test",)) if named or _stands(place / "meta") else None
    return ([_cifar(paths[0], "fine_labels")], [_cifar(paths[1], "fine_labels")]) if paths else None


def _cifar(path: Path, labels: str) -> Piece:
    with reading(path, "CIFAR pickle"):
        content = pickled.load(read_bytes(path, LARGEST_PICKLE, follow=True))
        if not isinstance(content, dict):
            raise UmbelError(f"The CIFAR file '{path}' must hold a dictionary. Got {type(content).__name__} instead.")
        plain = {key.decode() if isinstance(key, bytes) else key: value for key, value in content.items()}
        x, y = map(_numbers, _members(path, plain, ("data", labels)))
        return Piece(_rows_to(x, (3, 32, 32)), y, f"'{path}'")


def _numbers(value: Any) -> Array:
    """An array, or a list of whole numbers as one; lists in lists could ask for memory without end."""
    if isinstance(value, list) and all(type(each) is int for each in value):
        return np.array(value, np.int64)
    if not isinstance(value, np.ndarray):
        raise ValueError(f"a {type(value).__name__}, where only an array or a list of whole numbers may stand")
    return value


def _rows_to(x: Array, shape: tuple[int, ...]) -> Array:
    """Flat rows as images; another shape as it is: the check that follows refuses it with a sentence."""
    return x.reshape(-1, *shape) if x.ndim == 2 and x.shape[1] == np.prod(shape) else x


# SVHN: MATLAB

MATRICES = {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)} | {"single", "double"}


def svhn(place: Path, named: bool) -> Halves | None:
    """train_32x32.mat and test_32x32.mat, in which the digit 0 has the label 10."""
    paths = together(place, ("train_32x32.mat",), ("test_32x32.mat",))
    return ([_mat(paths[0])], [_mat(paths[1])]) if paths else None


def _mat(path: Path) -> Piece:
    scipy, names = import_module("scipy.io"), ("X", "y")
    with reading(path, "MATLAB"):
        content = io.BytesIO(_unpacked_mat(path, read_bytes(path, follow=True)))
        kinds = {name: kind for name, _, kind in scipy.whosmat(content)}
        if odd := [kind for kind in _members(path, kinds, names) if kind not in MATRICES]:
            raise ValueError(f"a {odd[0]}, where only numbers may stand")  # cells in cells end Python's stack
        x, y = map(np.asarray, _members(path, scipy.loadmat(content, variable_names=names), names))
        return Piece(x.transpose(3, 2, 0, 1) if x.ndim == 4 else x, np.where(y == 10, 0, y), f"'{path}'")


def _unpacked_mat(path: Path, raw: bytes) -> bytes:
    """The file with its packed matrices unpacked: what they say of their size is then held to what they have."""
    order = {b"IM": "<", b"MI": ">"}.get(raw[126:128])
    if order is None:
        raise ValueError("no MATLAB file of version 5")
    most, parts, at = most_unpacked(len(raw)), [raw[:128]], 128
    while at + 8 <= len(raw):
        kind, size = struct.unpack_from(f"{order}II", raw, at)
        if at + 8 + size > len(raw):
            raise ValueError("it is cut short")
        if kind == 15:  # a matrix, packed
            parts.append(zlib.decompressobj().decompress(raw[at + 8 : at + 8 + size], most + 1))
        else:
            parts.append(raw[at : at + 8 + size])
        most -= len(parts[-1])
        refuse_bomb(path, sum(map(len, parts)), len(raw))
        at += 8 + size
    return b"".join(parts)


# USPS: LIBSVM text or HDF5


def usps_libsvm(place: Path, named: bool) -> Halves | None:
    """usps.bz2 and usps.t.bz2: labels 1 to 10, values from -1 to 1."""
    paths = together(place, ("usps.bz2", "usps"), ("usps.t.bz2", "usps.t"))
    return ([_libsvm(paths[0])], [_libsvm(paths[1])]) if paths else None


def _libsvm(path: Path) -> Piece:
    with reading(path, "LIBSVM"):
        raw = read_bytes(path, follow=True)
        if raw.startswith(b"BZh"):
            raw = bz2.BZ2File(io.BytesIO(raw)).read(most_unpacked(len(raw)) + 1)
            refuse_bomb(path, len(raw), path.stat().st_size)
        load = import_module("sklearn.datasets").load_svmlight_file
        x, y = load(io.BytesIO(raw), n_features=256, zero_based=False)
        refuse_bomb(path, 8 * prod(x.shape), len(raw))
        labels = y.astype(np.int64) if np.array_equal(y, np.round(y)) else y
        return Piece(_grey(path, x.toarray(), -1, 1).reshape(-1, 16, 16), labels - 1, f"'{path}'")


def usps_h5(place: Path, named: bool) -> Halves | None:
    """usps.h5: groups train and test, each with data (n, 256) from 0 to 1 and target."""
    path = place / "usps.h5"
    if not _stands(path):
        return None
    try:
        h5py = import_module("h5py")
    except ImportError as error:
        raise UmbelError(f"The file '{path}' needs the package h5py to be read: pip install umbel[hdf5].") from error
    with opened(path, follow=True) as raw, reading(path, "HDF5"), h5py.File(raw, "r") as file:
        size = os.fstat(raw.fileno()).st_size
        halves = _inside(h5py, path, file, ("train", "test"), h5py.Group)
        arrays = [[_dataset(path, each, size) for each in _inside(h5py, path, half, ("data", "target"), h5py.Dataset)]
                  for half in halves]
        train, test = (Piece(_rows_to(_grey(path, x, 0, 1), (16, 16)), y, f"'{path}'") for x, y in arrays)
    return [train], [test]


def _inside(h5py: Any, path: Path, group: Any, names: tuple[str, ...], kind: Any) -> list[Any]:
    """The named members of a group, in this very file: HDF5 has links to others."""
    links = {name: link for name in names if (link := group.get(name, getlink=True)) is not None}
    if not all(isinstance(link, h5py.HardLink) for link in _members(path, links, names)):
        raise ValueError("a link, where only groups and numbers may stand")
    found = [group[name] for name in names]
    if not all(isinstance(each, kind) for each in found):
        raise ValueError(f"{' or '.join(names)} is no {kind.__name__.lower()}")
    return found


def _dataset(path: Path, dataset: Any, size: int) -> Array:
    """Its numbers, unless they lie in another file, or are many more than this one can hold."""
    if dataset.is_virtual or dataset.external or dataset.dtype.kind not in "biuf" or dataset.shape is None:
        raise ValueError(f"{dataset.name} holds no plain numbers of its own")
    refuse_bomb(path, dataset.size * dataset.dtype.itemsize, size)
    return np.asarray(dataset)


def _grey(path: Path, values: Array, low: float, high: float) -> Array:
    """Real numbers as uint8, rounded down as everyone does with USPS, after adding 0.001: 7 may be stored as 6.9999."""
    if values.dtype.kind != "f" or not values.size or not (values.min() >= low and values.max() <= high):
        span = f" from {values.min():g} to {values.max():g}" if values.size and values.dtype.kind in "iuf" else ""
        given = f"{values.size} of {values.dtype}{span}"
        raise UmbelError(f"The values of '{path}' must be real numbers from {low} to {high}. Got {given} instead.")
    return np.floor((values.astype(np.float64) - low) / (high - low) * 255 + 1e-3).astype(np.uint8)
