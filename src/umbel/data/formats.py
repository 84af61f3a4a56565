"""The file formats in which image sets are handed on. A reader looks into one folder and returns raw pieces.

It returns None when the folder has none of its files, and says one sentence when some are missing or damaged.
Whether a piece fits the set (shape, dtype, labels) is not known here: `sources` checks that.
"""

import gzip
import pickle
import re
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple
from zipfile import ZipFile, is_zipfile

import numpy as np
from numpy.typing import NDArray

from umbel.errors import UmbelError

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
    except Exception as error:
        reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        raise UmbelError(f"The file '{path}' must be a whole and readable {kind} file. Got: {reason}.") from error


def together(place: Path, *choices: tuple[str, ...]) -> list[Path] | None:
    """Of each choice the first name that is a file; None when the folder has none of any choice."""
    first = [next((place / name for name in names if (place / name).is_file()), None) for names in choices]
    paths = [path for path in first if path]
    missing = [names[0] for names, path in zip(choices, first, strict=True) if not path]
    if paths and missing:
        raise UmbelError(f"The folder '{place}' must hold {' and '.join(missing)} beside {paths[0].name}. Got none.")
    return paths or None


def _members(path: Path, content: Any, names: tuple[str, ...]) -> list[Any]:
    """The named members of a mapping that was read from a file."""
    if missing := [name for name in names if name not in content]:
        raise UmbelError(f"The file '{path}' must hold {', '.join(names)}. Got none named {', '.join(missing)}.")
    return [content[name] for name in names]


# npz


def npz(path: Path, names: tuple[str, ...]) -> list[Array]:
    """The named arrays of an npz file; one that needs pickle is refused."""
    with reading(path, "npz"), path.open("rb") as file:
        if not is_zipfile(file):  # np.load would take it for a pickle
            raise UmbelError(f"The file '{path}' must be an npz archive. Got no zip file, or one that was cut short.")
        file.seek(0)
        with np.load(file, allow_pickle=False) as archive:
            return _members(path, archive, names)


def whole_npz(path: Path) -> Halves:
    """Both halves from one file with x_train, y_train, x_test and y_test."""
    x_train, y_train, x_test, y_test = npz(path, ("x_train", "y_train", "x_test", "y_test"))
    return [Piece(x_train, y_train, f"x_train in '{path}'")], [Piece(x_test, y_test, f"x_test in '{path}'")]


def client_npz(path: Path) -> list[Array]:
    """One client's rows: x_train and y_train, then x_test and y_test if it has test rows."""
    arrays = npz(path, ("x_train", "y_train"))
    with ZipFile(path) as archive:
        tested = "x_test.npy" in archive.namelist()
    return [*arrays, *npz(path, ("x_test", "y_test"))] if tested else arrays


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
    with reading(path, "idx"):
        raw = path.read_bytes()
        if raw.startswith(b"\x1f\x8b"):  # by content: browsers unpack .gz and keep the name
            raw = gzip.decompress(raw)
        zero, kind, axes = struct.unpack_from(">HBB", raw)
        if (zero, kind) != (0, 8):  # 8 = unsigned bytes
            raise UmbelError(f"The idx file '{path}' must begin with 00 00 08 (hex). Got {raw[:3].hex(' ')} instead.")
        shape = struct.unpack_from(f">{axes}I", raw, 4)
        body = np.frombuffer(raw, np.uint8, offset=4 + 4 * axes)
    if len(body) != np.prod(shape, dtype=object):  # object: Python's integers do not overflow
        wanted = " x ".join(map(str, shape))
        raise UmbelError(f"The idx file '{path}' must hold the {wanted} bytes it announces. Got {len(body)} instead.")
    return body.reshape(shape)


def _in_pairs(paths: list[Path] | None, read: Callable[[Path], Array]) -> Halves | None:
    """Images and labels of the training half, then of the test half, each from its own file."""
    if not paths:
        return None
    x_train, y_train, x_test, y_test = paths
    return [Piece(read(x_train), read(y_train), f"'{x_train}'")], [Piece(read(x_test), read(y_test), f"'{x_test}'")]


# CIFAR: Python pickles


def cifar10(place: Path, named: bool) -> Halves | None:
    """data_batch_1 to data_batch_5, those that are there, and test_batch."""
    batches = [f"data_batch_{i}" for i in range(1, 6) if (place / f"data_batch_{i}").is_file()]
    paths = together(place, *((name,) for name in batches or ["data_batch_1"]), ("test_batch",))
    return ([_cifar(path, "labels") for path in paths[:-1]], [_cifar(paths[-1], "labels")]) if paths else None


def cifar100(place: Path, named: bool) -> Halves | None:
    """`train` and `test`, fine labels; plain names, so only in a folder named as the set or beside CIFAR's `meta`."""
    paths = together(place, ("train",), ("test",)) if named or (place / "meta").is_file() else None
    return ([_cifar(paths[0], "fine_labels")], [_cifar(paths[1], "fine_labels")]) if paths else None


def _cifar(path: Path, labels: str) -> Piece:
    with reading(path, "CIFAR pickle"), path.open("rb") as file:
        content = _Unpickler(file, encoding="bytes").load()
        if not isinstance(content, dict):
            raise UmbelError(f"The CIFAR file '{path}' must hold a dictionary. Got {type(content).__name__} instead.")
        plain = {key.decode() if isinstance(key, bytes) else key: value for key, value in content.items()}
        x, y = map(np.asarray, _members(path, plain, ("data", labels)))
    return Piece(_rows_to(x, (3, 32, 32)), y, f"'{path}'")


def _rows_to(x: Array, shape: tuple[int, ...]) -> Array:
    """Flat rows as images; another shape as it is: the check that follows refuses it with a sentence."""
    return x.reshape(-1, *shape) if x.ndim == 2 and x.shape[1] == np.prod(shape) else x


# A pickle may name any function and have it called. All that CIFAR's files name, written by Python 2 or 3 and NumPy 1
# or 2, is answered by the plain stand-ins below. numpy's own `dtype` and `ndarray` would not do: with a forged flag
# they take raw bytes for pointers to objects.


def _dtype(code: str | bytes, align: object = False, copy: object = False) -> np.dtype[Any]:
    """The machine's own dtype, which a pickle's state cannot change, as it could a copy."""
    text = code.decode() if isinstance(code, bytes) else code
    if not re.fullmatch("[biuf][1248]", text):
        raise pickle.UnpicklingError(f"an array of dtype '{text}', where only plain numbers may stand")
    return np.dtype(text)


def _reconstruct(kind: object, shape: object, code: object) -> Array:
    return np.empty(0, np.uint8)  # to be filled by ndarray.__setstate__


def _frombuffer(data: bytes, dtype: np.dtype[Any], shape: tuple[int, ...], order: Literal["C", "F"]) -> Array:
    if not isinstance(dtype, np.dtype):
        raise pickle.UnpicklingError(f"the dtype '{dtype}', where only plain numbers may stand")
    return np.frombuffer(data, dtype).reshape(shape, order=order)


def _encode(text: str, encoding: str) -> bytes:
    return text.encode("latin1")  # how Python 3 writes bytes in protocol 2


_ADMITTED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): object(),  # named, never called
    ("numpy", "dtype"): _dtype,
    ("_codecs", "encode"): _encode,
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _reconstruct for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _frombuffer for core in ("core", "_core")},
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ADMITTED:
            raise pickle.UnpicklingError(f"a call of {module}.{name}, where only arrays and labels may stand")
        return _ADMITTED[module, name]


# SVHN: MATLAB


def svhn(place: Path, named: bool) -> Halves | None:
    """train_32x32.mat and test_32x32.mat, in which the digit 0 has the label 10."""
    paths = together(place, ("train_32x32.mat",), ("test_32x32.mat",))
    return ([_mat(paths[0])], [_mat(paths[1])]) if paths else None


def _mat(path: Path) -> Piece:
    with reading(path, "MATLAB"):
        x, y = map(np.asarray, _members(path, import_module("scipy.io").loadmat(path), ("X", "y")))
    return Piece(x.transpose(3, 2, 0, 1) if x.ndim == 4 else x, np.where(y == 10, 0, y), f"'{path}'")


# USPS: LIBSVM text or HDF5


def usps_libsvm(place: Path, named: bool) -> Halves | None:
    """usps.bz2 and usps.t.bz2: labels 1 to 10, values from -1 to 1."""
    paths = together(place, ("usps.bz2", "usps"), ("usps.t.bz2", "usps.t"))
    return ([_libsvm(paths[0])], [_libsvm(paths[1])]) if paths else None


def _libsvm(path: Path) -> Piece:
    with reading(path, "LIBSVM"):
        x, y = import_module("sklearn.datasets").load_svmlight_file(str(path), n_features=256, zero_based=False)
    labels = y.astype(np.int64) if np.array_equal(y, np.round(y)) else y
    return Piece(_grey(path, x.toarray(), -1, 1).reshape(-1, 16, 16), labels - 1, f"'{path}'")


def usps_h5(place: Path, named: bool) -> Halves | None:
    """usps.h5: groups train and test, each with data (n, 256) from 0 to 1 and target."""
    path = place / "usps.h5"
    if not path.is_file():
        return None
    try:
        h5py = import_module("h5py")
    except ImportError as error:
        raise UmbelError(f"The file '{path}' needs the package h5py to be read: pip install umbel[hdf5].") from error
    with reading(path, "HDF5"), h5py.File(path, "r") as file:
        halves = _members(path, file, ("train", "test"))
        arrays = [[np.asarray(a) for a in _members(path, half, ("data", "target"))] for half in halves]
    train, test = (Piece(_rows_to(_grey(path, x, 0, 1), (16, 16)), y, f"'{path}'") for x, y in arrays)
    return [train], [test]


def _grey(path: Path, values: Array, low: float, high: float) -> Array:
    """Real numbers as uint8, rounded down as everyone does with USPS, after adding 0.001: 7 may be stored as 6.9999."""
    if values.dtype.kind != "f" or not values.size or not (values.min() >= low and values.max() <= high):
        span = f" from {values.min():g} to {values.max():g}" if values.size and values.dtype.kind in "iuf" else ""
        given = f"{values.size} of {values.dtype}{span}"
        raise UmbelError(f"The values of '{path}' must be real numbers from {low} to {high}. Got {given} instead.")
    return np.floor((values.astype(np.float64) - low) / (high - low) * 255 + 1e-3).astype(np.uint8)
