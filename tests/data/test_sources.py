"""Every format comes back as the arrays that were written, and every damaged file as one sentence."""

import bz2
import gzip
import io
import os
import pickle
import struct
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import scipy.io
from real_data import REAL

from umbel import files
from umbel.data import pickled, sources
from umbel.data.natural import NATURAL
from umbel.data.sources import DATASETS, Dataset, open_dataset
from umbel.errors import UmbelError
from umbel.files import most_unpacked
from umbel.nets.objective import Classify, Regress

Arrays = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # x_train, y_train, x_test, y_test


@pytest.fixture(autouse=True)
def nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the folder of a test counts: no $UMBEL_DATA, no system package, no hub."""
    monkeypatch.delenv("UMBEL_DATA", raising=False)
    monkeypatch.setitem(sources.SYSTEM, "fashion-mnist", ("dataset-fashion-mnist", Path("/nonexistent")))
    monkeypatch.setitem(sys.modules, "datasets", None)


def images(name: str, train: int = 7, test: int = 3, seed: int = 0) -> Arrays:
    """A tiny set of random pixels in the shape of a real one."""
    rng, source = np.random.default_rng(seed), DATASETS[name]
    x = rng.integers(0, 256, (train + test, *source.shape), dtype=np.uint8)
    y = rng.integers(0, source.classes, train + test)
    return x[:train], y[:train], x[train:], y[train:]


def same(found: Dataset, arrays: Arrays) -> bool:
    held: Arrays = (found.x_train, found.y_train, found.x_test, found.y_test)
    return [a.tolist() for a in held] == [a.tolist() for a in arrays]


def refusal(name: str, folder: Path) -> str:
    """The sentence that `load` refuses with; on one line."""
    with pytest.raises(UmbelError) as caught:
        open_dataset(name, folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def write_npz(path: Path, arrays: Arrays, **others: Any) -> None:
    named = dict(zip(("x_train", "y_train", "x_test", "y_test"), arrays, strict=True))
    np.savez_compressed(path, **{**named, **others})


def idx_bytes(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def write_idx(folder: Path, arrays: Arrays, end: str = "") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    names = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    for name, array in zip(names, arrays, strict=True):
        raw = idx_bytes(array.squeeze(1) if array.ndim == 4 else array)
        (folder / f"{name}-ubyte{end}").write_bytes(gzip.compress(raw) if end else raw)


def write_cifar10(folder: Path, arrays: Arrays, dump: Any = pickle.dumps) -> None:
    """The training rows over two batches."""
    x_train, y_train, x_test, y_test = arrays
    batches = {"data_batch_1": (x_train[:4], y_train[:4]), "data_batch_2": (x_train[4:], y_train[4:])}
    for name, (x, y) in {**batches, "test_batch": (x_test, y_test)}.items():
        (folder / name).write_bytes(dump({b"data": x.reshape(len(x), -1), b"labels": y.tolist()}))


PurePickler: Any = vars(pickle)["_Pickler"]  # the pickler in Python, whose parts can be replaced


class Python2Pickler(PurePickler):  # type: ignore[misc]
    """Writes what Python 2 with NumPy 1 wrote: byte strings, 0 and 1 for False and True, `numpy.core`."""

    def save_string(self, text: bytes) -> None:
        self.write(b"T" + struct.pack("<i", len(text)) + text)

    dispatch: ClassVar[dict[type, Any]] = {**PurePickler.dispatch, bytes: save_string}

    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, np.dtype):
            return np.dtype, (b"u1", 0, 1), (3, b"|", None, None, None, -1, -1, 0)
        if isinstance(thing, np.ndarray):
            state = (1, thing.shape, thing.dtype, 0, thing.tobytes())
            return thing.__reduce__()[0], (np.ndarray, (0,), b"b"), state
        return NotImplemented


def python2(held: Any) -> bytes:
    file = io.BytesIO()
    Python2Pickler(file, 2).dump(held)
    return file.getvalue().replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n")


# What there is


def test_a_data_set_that_is_not_known_is_named_with_the_near_spelling() -> None:
    """A slip of the pen gets the right name."""
    with pytest.raises(UmbelError, match=r"no data set 'fashion-mnits'\. Did you mean 'fashion-mnist'"):
        open_dataset("fashion-mnits")


def test_every_source_has_a_mean_and_a_deviation_a_channel() -> None:
    """Normalisation needs one number a channel."""
    assert list(DATASETS) == ["digits", "mnist", "fashion-mnist", "kmnist", "cifar10", "cifar100", "svhn", "usps",
                              "diabetes", *NATURAL]
    for source in DATASETS.values():
        assert len(source.mean) == len(source.std)
        assert len(source.mean) == source.shape[0] or (source.natural and source.mean == (0.0,))
        assert source.title
        assert source.terms


def test_digits_are_whole_and_never_change() -> None:
    """The test half is a fifth of each label, and the same rows for ever."""
    digits = open_dataset("digits")
    assert digits.label == "digits"
    assert digits.x_train.shape == (1438, 1, 8, 8)
    assert digits.x_test.shape == (359, 1, 8, 8)
    assert digits.x_train.max() == 255
    assert digits.x_train.dtype == np.uint8
    assert np.bincount(digits.y_test).tolist() == [36, 36, 35, 37, 36, 36, 36, 36, 35, 36]
    assert digits.y_test[:12].tolist() == [1, 5, 5, 3, 5, 5, 9, 1, 2, 1, 3, 1]
    assert np.array_equal(open_dataset("digits").x_test, digits.x_test)


def test_diabetes_is_whole_and_never_changes() -> None:
    """The test half is one of five neighbours in target; centre, scale, borders are the training half's."""
    diabetes, source = open_dataset("diabetes"), DATASETS["diabetes"]
    assert (len(diabetes.x_train), len(diabetes.x_test)) == (source.train, source.test) == (354, 88)
    assert diabetes.x_train.shape[1:] == source.shape == (10,)
    assert diabetes.x_train.dtype == diabetes.y_train.dtype == np.float32
    assert diabetes.objective == source.objective
    assert (diabetes.classes, source.images) == (0, False)
    assert diabetes.y_test[:8].tolist() == [151, 206, 135, 118, 49, 68, 137, 131]
    y, goal = diabetes.y_train, diabetes.objective
    assert goal.centre == pytest.approx(y.mean(), abs=0.05)
    assert goal.scale == pytest.approx(y.std(), abs=0.05)
    assert goal.bins == tuple(np.quantile(y, (0.25, 0.5, 0.75)).tolist())
    assert np.bincount(goal.groups_of(y)).tolist() == [89, 88, 88, 89]
    assert source.mean == pytest.approx(diabetes.x_train.mean(0), abs=5.1e-5)
    assert source.std == pytest.approx(diabetes.x_train.std(0), abs=5.1e-5)
    assert abs(np.mean(diabetes.y_test) - goal.centre) < 1


def test_a_set_says_what_a_model_is_for() -> None:
    """By classes, which are a classification, or by an objective; both agree, or are refused."""
    x, y = np.zeros((4, 2), np.float32), np.zeros(4, np.int64)
    assert Dataset("mine", x, y, x, y, 3).objective == Classify(3)
    assert Dataset("mine", x, y, x, y, objective=Classify(3)).classes == 3
    assert Dataset("mine", x, y, x, y, objective=Regress()).classes == 0
    with pytest.raises(UmbelError, match=r"The data set 'mine' must say what a model is for: give classes="):
        Dataset("mine", x, y, x, y)
    with pytest.raises(UmbelError, match=r"must have the 3 classes of its objective\. Got 4 instead\."):
        Dataset("mine", x, y, x, y, 4, objective=Classify(3))


# Formats


@pytest.mark.parametrize("name", [name for name in DATASETS if name not in ("digits", "diabetes", *NATURAL)])
def test_npz_comes_back_as_it_was_written(name: str, tmp_path: Path) -> None:
    """Images with the channels last, as npz files have them, become channels first; arrays are fit for torch."""
    x_train, y_train, x_test, y_test = images(name)
    write_npz(tmp_path / f"{name}.npz", (x_train.transpose(0, 2, 3, 1), y_train[:, None], x_test, y_test))
    found = open_dataset(name, tmp_path)
    assert same(found, (x_train, y_train, x_test, y_test))
    assert found.x_train.dtype == np.uint8
    assert found.y_train.dtype == np.int64
    arrays = (found.x_train, found.y_train, found.x_test, found.y_test)
    assert all(array.flags.c_contiguous and array.flags.writeable for array in arrays)
    assert found.label == f"{name} (7 of {DATASETS[name].train:,})"
    assert found.classes == DATASETS[name].classes


@pytest.mark.parametrize(
    ("name", "file"),
    [("fashion-mnist", "fashion_mnist.npz"), ("cifar10", "cifar10-20k.npz"), ("cifar100", "cifar-100_500.npz")],
)
def test_npz_files_go_by_customary_names(name: str, file: str, tmp_path: Path) -> None:
    """Other spellings count, and parts with their size."""
    write_npz(tmp_path / file, images(name))
    assert same(open_dataset(name, tmp_path), images(name))


@pytest.mark.parametrize(
    ("name", "file"),
    [("mnist", "fashion_mnist.npz"), ("mnist", "kmnist.npz"), ("cifar10", "cifar100.npz"), ("mnist", "mnist-c.npz")],
)
def test_npz_files_of_other_sets_do_not_count(name: str, file: str, tmp_path: Path) -> None:
    """A name that only resembles the set is another set."""
    write_npz(tmp_path / file, images(name))
    assert "was not found" in refusal(name, tmp_path)


def test_two_parts_in_one_folder_are_refused(tmp_path: Path) -> None:
    """Nobody should have to guess which part was taken."""
    for size in ("10k", "20k"):
        write_npz(tmp_path / f"svhn-{size}.npz", images("svhn"))
    assert "must hold one part of svhn. Got svhn-10k.npz, svhn-20k.npz." in refusal("svhn", tmp_path)


@pytest.mark.parametrize("end", ["", ".gz"])
@pytest.mark.parametrize(
    ("name", "place"),
    [("mnist", "MNIST/raw"), ("fashion-mnist", "FashionMNIST/raw"), ("kmnist", "KMNIST/raw"), ("mnist", "mnist")],
)
def test_idx_comes_back_as_it_was_written(name: str, place: str, end: str, tmp_path: Path) -> None:
    """Plain and packed idx files, in torchvision's folders and in one named as the set."""
    write_idx(tmp_path / place, images(name), end)
    found = open_dataset(name, tmp_path)
    assert same(found, images(name))
    assert found.x_train.flags.writeable
    assert same(open_dataset(name, tmp_path / place), images(name))


def test_mnist_never_passes_for_fashion_mnist(tmp_path: Path) -> None:
    """MNIST, Fashion-MNIST and KMNIST share their file names: only the folder's name tells them apart."""
    write_idx(tmp_path / "MNIST" / "raw", images("mnist"))
    write_idx(tmp_path / "loose", images("mnist"))
    for folder in (tmp_path, tmp_path / "MNIST", tmp_path / "MNIST" / "raw", tmp_path / "loose"):
        assert "'fashion-mnist' was not found" in refusal("fashion-mnist", folder)
    assert "'mnist' was not found" in refusal("mnist", tmp_path / "loose")
    write_idx(tmp_path / "FashionMNIST" / "raw", images("fashion-mnist", seed=1))
    assert same(open_dataset("mnist", tmp_path), images("mnist"))
    assert same(open_dataset("fashion-mnist", tmp_path), images("fashion-mnist", seed=1))


def test_kmnist_has_npz_files_of_its_own(tmp_path: Path) -> None:
    """KMNIST is also handed on as four npz files with one unnamed array each."""
    for name, array in zip(("train-imgs", "train-labels", "test-imgs", "test-labels"), images("kmnist"), strict=True):
        np.savez(tmp_path / f"kmnist-{name}.npz", array.squeeze(1) if array.ndim == 4 else array)
    assert same(open_dataset("kmnist", tmp_path), images("kmnist"))


@pytest.mark.parametrize("dump", [python2, *(lambda held, p=p: pickle.dumps(held, p) for p in (2, 4, 5))])
@pytest.mark.parametrize("place", [".", "cifar-10-batches-py", "cifar10/cifar-10-batches-py"])
def test_cifar10_batches_come_back_as_they_were_written(dump: Any, place: str, tmp_path: Path) -> None:
    """The batches that are there, pickled by Python 2 or by Python 3 in any protocol; some of five are a part."""
    (tmp_path / place).mkdir(parents=True, exist_ok=True)
    write_cifar10(tmp_path / place, images("cifar10"), dump)
    found = open_dataset("cifar10", tmp_path)
    assert same(found, images("cifar10"))
    assert found.x_train.flags.writeable
    assert found.label == "cifar10 (7 of 50,000)"


@pytest.mark.parametrize("dump", [python2, pickle.dumps])
def test_cifar100_comes_back_with_its_fine_labels(dump: Any, tmp_path: Path) -> None:
    """Fine labels, not coarse ones; `train` and `test` count in CIFAR's folder, or beside its `meta`."""
    x_train, y_train, x_test, y_test = images("cifar100")
    for folder in (tmp_path / "cifar-100-python", tmp_path / "other"):
        folder.mkdir()
        for name, x, y in (("train", x_train, y_train), ("test", x_test, y_test)):
            held = {b"data": x.reshape(len(x), -1), b"fine_labels": y.tolist(), b"coarse_labels": [0] * len(y)}
            (folder / name).write_bytes(dump(held))
    assert same(open_dataset("cifar100", tmp_path), images("cifar100"))
    assert "was not found" in refusal("cifar100", tmp_path / "other")
    (tmp_path / "other" / "meta").touch()
    assert same(open_dataset("cifar100", tmp_path / "other"), images("cifar100"))


@pytest.mark.parametrize("place", [".", "svhn"])
def test_svhn_comes_back_with_zero_as_label_zero(place: str, tmp_path: Path) -> None:
    """SVHN's files write the digit 0 as label 10 and put the rows last."""
    (tmp_path / place).mkdir(exist_ok=True)
    x_train, y_train, x_test, y_test = images("svhn", train=20)
    assert 0 in y_train
    for half, x, y in (("train", x_train, y_train), ("test", x_test, y_test)):
        held = {"X": x.transpose(2, 3, 1, 0), "y": np.where(y == 0, 10, y)[:, None].astype(np.uint8)}
        scipy.io.savemat(tmp_path / place / f"{half}_32x32.mat", held, do_compression=True)
    assert same(open_dataset("svhn", tmp_path), images("svhn", train=20))


def test_usps_comes_back_from_libsvm(tmp_path: Path) -> None:
    """Labels from 1 and values from -1 to 1 become labels from 0 and bytes; an index left out is the value 0."""
    x_train, y_train, x_test, y_test = images("usps")
    for file, x, y in (("usps.bz2", x_train, y_train), ("usps.t.bz2", x_test, y_test)):
        values = x.reshape(len(x), -1) / 255 * 2 - 1
        rows = [" ".join([f"{label + 1}", *(f"{i}:{v:.6f}" for i, v in enumerate(row, 1))])
                for label, row in zip(y, values, strict=True)]
        (tmp_path / file).write_bytes(bz2.compress("\n".join(rows).encode()))
    assert same(open_dataset("usps", tmp_path), images("usps"))
    (tmp_path / "usps.t.bz2").write_bytes(bz2.compress(b"10 1:-1 2:1\n"))
    found = open_dataset("usps", tmp_path)
    assert found.y_test.tolist() == [9]
    assert found.x_test.reshape(-1)[:4].tolist() == [0, 255, 127, 127]


def test_usps_comes_back_from_hdf5(tmp_path: Path) -> None:
    """Values from 0 to 1 become bytes."""
    h5py = pytest.importorskip("h5py", reason="h5py is an extra")
    x_train, y_train, x_test, y_test = images("usps")
    with h5py.File(tmp_path / "usps.h5", "w") as file:
        for half, x, y in (("train", x_train, y_train), ("test", x_test, y_test)):
            file[f"{half}/data"] = (x.reshape(len(x), -1) / 255).astype(np.float32)
            file[f"{half}/target"] = y
    assert same(open_dataset("usps", tmp_path), images("usps"))
    (tmp_path / "usps.h5").write_bytes((tmp_path / "usps.h5").read_bytes()[:1000])
    assert "usps.h5' must be a whole and readable HDF5 file" in refusal("usps", tmp_path)


def test_usps_without_h5py_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """h5py is an extra: its absence is one sentence."""
    monkeypatch.setitem(sys.modules, "h5py", None)
    (tmp_path / "usps.h5").touch()
    assert refusal("usps", tmp_path).endswith("usps.h5' needs the package h5py to be read: pip install umbel[hdf5].")


def test_columns_of_the_hub_become_arrays() -> None:
    """Pictures come one by one from the hub."""
    x, y, _, _ = images("cifar10")
    piece = sources._from_columns(list(x.transpose(0, 2, 3, 1)), y.tolist(), "uoft-cs/cifar10")
    assert np.array_equal(piece.x, x.transpose(0, 2, 3, 1))
    assert np.array_equal(piece.y, y)
    assert set(sources.HUB) == set(DATASETS) - {"digits", "diabetes", "kmnist", *NATURAL}


# Where


def test_the_folder_given_comes_before_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--data-dir, then $UMBEL_DATA, then the system's package."""
    for seed, place in enumerate(("given", "environment")):
        (tmp_path / place).mkdir()
        write_npz(tmp_path / place / "fashion-mnist.npz", images("fashion-mnist", seed=seed))
    write_idx(tmp_path / "system" / "fashion-mnist", images("fashion-mnist", seed=2), ".gz")
    package = ("dataset-fashion-mnist", tmp_path / "system" / "fashion-mnist")
    monkeypatch.setitem(sources.SYSTEM, "fashion-mnist", package)
    assert same(open_dataset("fashion-mnist"), images("fashion-mnist", seed=2))
    monkeypatch.setenv("UMBEL_DATA", str(tmp_path / "environment"))
    assert same(open_dataset("fashion-mnist"), images("fashion-mnist", seed=1))
    assert same(open_dataset("fashion-mnist", tmp_path / "given"), images("fashion-mnist", seed=0))
    assert same(open_dataset("fashion-mnist", tmp_path), images("fashion-mnist", seed=1))


def test_a_missing_set_tells_the_ways_to_bring_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder, the system's package, the hub: in one sentence, without those that a set does not have; a folder that
    is named twice, once."""
    monkeypatch.setenv("UMBEL_DATA", str(tmp_path))
    assert refusal("fashion-mnist", tmp_path) == (
        f"The data set 'fashion-mnist' was not found in {tmp_path}: put its files in a folder and name that with "
        "--data-dir or $UMBEL_DATA, install the system package dataset-fashion-mnist, or fetch it from the "
        "Hugging Face hub with pip install umbel[hub]."
    )
    assert "system package" not in refusal("cifar10", tmp_path)
    assert "umbel[hub]" in refusal("cifar10", tmp_path)
    assert refusal("kmnist", tmp_path).endswith("$UMBEL_DATA (umbel knows no copy of it on the Hugging Face hub).")


def test_a_data_folder_must_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slip in a path is not a missing set."""
    gone = tmp_path / "gone"
    assert refusal("mnist", gone) == f"The data folder (--data-dir) must be a folder that exists. Got '{gone}' instead."
    monkeypatch.setenv("UMBEL_DATA", str(gone))
    assert "($UMBEL_DATA) must be a folder that exists" in refusal("mnist", tmp_path)


# Refusals


class Evil:
    """Pickled, it is a call of os.system."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> Any:
        return os.system, (self.command,)


@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_a_malicious_pickle_is_refused_and_does_not_run(protocol: int, tmp_path: Path) -> None:
    """A batch that calls os.system is named, and its command leaves no trace."""
    witness = tmp_path / "witness"
    evil = {b"data": Evil(f"touch {witness}"), b"labels": [0]}
    write_cifar10(tmp_path, images("cifar10"), lambda held: pickle.dumps(evil, protocol))
    said = refusal("cifar10", tmp_path)
    assert "data_batch_1' must be a whole and readable CIFAR pickle file. Got: a call of " in said
    assert "system" in said
    assert not witness.exists()
    pickle.loads(pickle.dumps(evil, protocol))
    assert witness.exists()  # so the pickle was a real one


@pytest.mark.parametrize("held", [np.array([{}], dtype=object), np.array(["text"]), np.int64, print, Path()])
def test_a_pickle_of_anything_but_numbers_is_refused(held: Any, tmp_path: Path) -> None:
    """Objects, text, types and functions have no place among images."""
    write_cifar10(tmp_path, images("cifar10"), lambda _: pickle.dumps({"data": held, "labels": [0]}))
    assert "where only" in refusal("cifar10", tmp_path)


class Forged:
    """Pickled, it is a call of one of the names that CIFAR's files need, with arguments of the attacker's choice."""

    def __init__(self, *reduced: Any) -> None:
        self.reduced = reduced

    def __reduce__(self) -> Any:
        return self.reduced


@pytest.mark.parametrize(
    "forged",
    [
        Forged(np.ndarray, ((1,), "O", b"12345678")),
        Forged(np.zeros(1).__reduce_ex__(5)[0], (b"12345678", "O", (1,), "C")),
        Forged(np.dtype, (">i8", False, True), (3, ">", None, None, None, -1, -1, 63)),
    ],
)
def test_numpy_is_not_tricked_into_taking_bytes_for_objects(forged: Forged, tmp_path: Path) -> None:
    """The names that are admitted do not reach numpy's own constructors."""
    write_cifar10(tmp_path, images("cifar10"), lambda _: pickle.dumps({"data": forged, "labels": [0]}))
    assert "data_batch_1' must be a whole and readable CIFAR pickle file" in refusal("cifar10", tmp_path)


def test_a_dtype_with_forged_flags_stays_a_plain_dtype() -> None:
    """numpy would believe a state that says: these bytes are pointers."""
    flagged = (3, "|", None, None, None, -1, -1, 63)
    copied: Any = np.dtype("u1", False, True)
    copied.__setstate__(flagged)
    assert copied.hasobject  # so the forgery is a real one
    found = pickled.load(pickle.dumps(Forged(np.dtype, ("u1", False, True), flagged)))
    assert found is np.dtype("u1")
    assert not found.hasobject


def test_npz_files_that_need_pickle_are_refused(tmp_path: Path) -> None:
    """An npz of objects is a pickle in disguise."""
    write_npz(tmp_path / "mnist.npz", images("mnist"), y_test=np.array([Evil("true")], dtype=object))
    said = "mnist.npz' must be a whole and readable npz file. Got: 'y_test.npy' holds objects"
    assert said in refusal("mnist", tmp_path)


@pytest.mark.parametrize("keep", [0, 3, 100, 0.5, 0.999])
@pytest.mark.parametrize(
    "file", ["mnist.npz", "kmnist/t10k-images-idx3-ubyte", "fashion/t10k-images-idx3-ubyte.gz", "test_batch",
             "test_32x32.mat", "usps.t.bz2"],
)
def test_a_truncated_file_is_one_sentence(file: str, keep: float, tmp_path: Path) -> None:
    """Whatever was cut off, the sentence names the file."""
    write_npz(tmp_path / "mnist.npz", images("mnist"))
    write_idx(tmp_path / "kmnist", images("kmnist"))
    write_idx(tmp_path / "fashion", images("fashion-mnist"), ".gz")
    write_cifar10(tmp_path, images("cifar10"))
    x, y, _, _ = images("svhn")
    for half in ("train", "test"):
        scipy.io.savemat(tmp_path / f"{half}_32x32.mat", {"X": x.transpose(2, 3, 1, 0), "y": y[:, None]})
    line = " ".join(["1", *(f"{i}:0.5" for i in range(1, 257))]).encode()
    for name in ("usps.bz2", "usps.t.bz2"):
        (tmp_path / name).write_bytes(bz2.compress(line))
    name = {"mnist.npz": "mnist", "kmnist": "kmnist", "fashion": "fashion-mnist", "test_batch": "cifar10",
            "test_32x32.mat": "svhn", "usps.t.bz2": "usps"}[Path(file).parts[0]]
    assert open_dataset(name, tmp_path)
    raw = (tmp_path / file).read_bytes()
    (tmp_path / file).write_bytes(raw[: int(keep if keep >= 1 else keep * len(raw))])
    assert str(tmp_path / file) in refusal(name, tmp_path)


@pytest.mark.parametrize("seed", range(20))
def test_a_corrupted_file_never_ends_in_a_traceback(seed: int, tmp_path: Path) -> None:
    """Random bytes over a file give the set, or one sentence."""
    rng = np.random.default_rng(seed)
    write_npz(tmp_path / "mnist.npz", images("mnist"))
    write_cifar10(tmp_path, images("cifar10"), python2 if seed % 2 else pickle.dumps)
    for name, file in (("mnist", "mnist.npz"), ("cifar10", "test_batch")):
        raw = bytearray((tmp_path / file).read_bytes())
        for position in rng.integers(0, min(len(raw), 400), 8):
            raw[position] = rng.integers(256)
        (tmp_path / file).write_bytes(raw)
        with suppress(UmbelError):
            open_dataset(name, tmp_path)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"x_train": np.zeros((7, 28, 28))}, "must be uint8, 0 to 255. Got float64 instead."),
        ({"x_train": np.zeros((7, 32, 32), np.uint8)}, "(n, 28, 28, 1) of mnist. Got (7, 32, 32) instead."),
        ({"x_train": np.zeros((), np.uint8)}, "shape (n, 1, 28, 28) or (n, 28, 28, 1) of mnist. Got () instead."),
        ({"x_train": np.zeros((0, 28, 28), np.uint8)}, "Got (0, 28, 28) instead."),
        ({"x_train": np.zeros((6, 28, 28), np.uint8)}, "must be 6 whole numbers, one an image. Got int64 of shape"),
        ({"y_train": np.zeros(7)}, "must be 7 whole numbers, one an image. Got float64 of shape (7,) instead."),
        ({"y_train": np.zeros((7, 10), int)}, "Got int64 of shape (7, 10) instead."),
        ({"y_train": np.array([0, 1, 2, 3, 4, 5, 10])}, "must lie in 0 to 9. Got 0 to 10 instead."),
        ({"y_train": np.array([0, 1, 2, 3, 4, 5, -1])}, "must lie in 0 to 9. Got -1 to 5 instead."),
    ],
)
def test_arrays_that_do_not_fit_the_set_are_refused(wrong: dict[str, np.ndarray], said: str, tmp_path: Path) -> None:
    """The sentence names the file, the rule and what was found."""
    write_npz(tmp_path / "mnist.npz", images("mnist"), **wrong)
    sentence = refusal("mnist", tmp_path)
    assert f"of x_train in '{tmp_path / 'mnist.npz'}' must" in sentence
    assert said in sentence


def test_an_npz_file_must_hold_its_four_arrays(tmp_path: Path) -> None:
    """A missing array is named."""
    np.savez(tmp_path / "mnist.npz", x_train=np.zeros(3), images=np.zeros(3))
    said = refusal("mnist", tmp_path)
    assert said.endswith("must hold x_train, y_train, x_test, y_test. Got none named y_train, x_test, y_test.")


def test_a_set_larger_than_the_whole_is_another_set(tmp_path: Path) -> None:
    """USPS has 2,007 test images; a file with more is not USPS."""
    write_npz(tmp_path / "usps.npz", images("usps", test=2008))
    assert "The set usps has at most 2,007 images in x_test in" in refusal("usps", tmp_path)


def test_a_whole_training_half_with_a_part_of_the_test_half_is_a_part(tmp_path: Path) -> None:
    """The label tells of a short test half as well."""
    write_npz(tmp_path / "usps.npz", images("usps", train=7291, test=5))
    assert open_dataset("usps", tmp_path).label == "usps (test 5 of 2,007)"


def test_files_that_belong_together_must_all_be_there(tmp_path: Path) -> None:
    """The missing one is named."""
    write_idx(tmp_path / "mnist", images("mnist"))
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte").unlink()
    assert "must hold t10k-labels-idx1-ubyte beside train-images-idx3-ubyte. Got none." in refusal("mnist", tmp_path)
    write_cifar10(tmp_path, images("cifar10"))
    (tmp_path / "test_batch").unlink()
    assert "must hold test_batch beside data_batch_1. Got none." in refusal("cifar10", tmp_path)


def test_idx_files_are_held_to_their_header(tmp_path: Path) -> None:
    """The magic number and the announced size."""
    write_idx(tmp_path / "mnist", images("mnist"))
    file = tmp_path / "mnist" / "train-images-idx3-ubyte"
    file.write_bytes(b"\x00\x00\x0d" + file.read_bytes()[3:])
    assert "must begin with 00 00 08 (hex). Got 00 00 0d instead." in refusal("mnist", tmp_path)
    file.write_bytes(struct.pack(">HBB3I", 0, 8, 3, 2**32 - 1, 2**32 - 1, 28) + b"1234")
    assert "must hold the 4294967295 x 4294967295 x 28 bytes it announces. Got 4 instead." in refusal("mnist", tmp_path)


# Real data


@pytest.mark.skipif(not REAL.is_dir(), reason=f"no real data in {REAL}")
@pytest.mark.parametrize("name", [name for name in DATASETS if name not in ("digits", "diabetes", *NATURAL)])
def test_real_sets_load(name: str) -> None:
    """Every label occurs in both halves, pixels use the whole range, and a part says so."""
    try:
        found = open_dataset(name, REAL)
    except UmbelError as error:
        if "was not found" in str(error):
            pytest.skip(f"no {name} in {REAL}")
        raise
    source = DATASETS[name]
    assert found.x_train.shape == (len(found.y_train), *source.shape)
    assert found.x_test.shape == (len(found.y_test), *source.shape)
    assert len(np.unique(found.y_train)) == len(np.unique(found.y_test)) == source.classes
    assert found.x_train.min() == 0
    assert found.x_train.max() == 255
    assert found.part == ("" if len(found.y_train) == source.train else f"{len(found.y_train):,} of {source.train:,}")
    mean = found.x_train.mean(axis=(0, 2, 3)) / 255
    if name != "fashion-mnist":  # it is normalised by MNIST's figures
        assert np.abs(mean - source.mean).max() < 0.02


# Files that are more than they seem


def words(*parts: bytes) -> bytes:
    """A pickle of protocol 4, word by word."""
    return b"\x80\x04" + b"".join(parts) + b"."


def times(pickled: bytes, count: int) -> bytes:
    """One text, made into bytes again and again by what CIFAR's files are allowed to name."""
    start = b"c_codecs\nencode\nq\x00(X" + struct.pack("<I", len(pickled)) + pickled + b"U\x06latin1tq\x01"
    return words(b"]", start, *[b"h\x00h\x01R"] * count)


PICKLES: dict[str, tuple[bytes, str]] = {
    "a text of 10^12 letters": (words(b"\x8d", struct.pack("<Q", 10**12), b"x"), "expected 1000000000000 bytes"),
    "bytes of 10^12": (words(b"\x8e", struct.pack("<Q", 10**12), b"x"), "expected 1000000000000 bytes"),
    "a bytearray of 10^12": (words(b"\x96", struct.pack("<Q", 10**12), b"x"), "expected 1000000000000 bytes"),
    "a number of 2^31 bytes": (words(b"\x8b", struct.pack("<i", 2**31 - 1), b"1"), "not enough data"),
    "a memo of 2^32": (words(b"Nr", struct.pack("<I", 2**32 - 1)), "must hold a dictionary. Got NoneType"),
    "one text many times": (times(b"x" * 1000, 100), "texts that become larger than the file"),
    "lists in lists": (words(b"]" * 10**5, b"a" * (10**5 - 1)), "must hold a dictionary. Got list instead."),
    "tuples in tuples as a key": (words(b"}", b")", b"\x85" * 3 * 10**5, b"Ns"), "keys are not all texts"),
    "a tuple as a key": (words(b"}", b")", b"\x85", b"Ns"), "keys are not all texts"),
    "a list in itself": (words(b"}(X\x04\0\0\0data]q\x00h\x00aX\x06\0\0\0labels]u"), "a list, where only an array or"),
    "an object": (words(b"(idict\nx\n"), "the word INST, where only arrays and labels may stand"),
    "an outside reference": (words(b"Pbeyond\n"), "the word PERSID, where only"),
    "words without end": (words(b"N0" * 3), "the word POP, where only"),
    "very many words": (words(b"N" * (2**22 + 1)), "more than 4,194,304 words"),
    "nothing on the stack": (words(b"R"), "must be a whole and readable CIFAR pickle file"),
    "a memory that is empty": (words(b"h\x05"), "must be a whole and readable CIFAR pickle file"),
}


@pytest.mark.parametrize(("content", "said"), PICKLES.values(), ids=PICKLES.keys())
def test_a_pickle_takes_no_more_than_it_brings(content: bytes, said: str, tmp_path: Path) -> None:
    """Claims of size, depth and repetition end in a sentence, not in memory or in a crash."""
    write_cifar10(tmp_path, images("cifar10"), lambda _: content)
    assert said in refusal("cifar10", tmp_path)


def bombs(folder: Path) -> dict[str, str]:
    """Small files that unpack to 3 MB and more, of each format that packs; the set that each would be."""
    zeros = bytes(3 * 10**6)
    write_idx(folder / "mnist", images("mnist"))
    (folder / "mnist" / "train-images-idx3-ubyte").unlink()
    header = struct.pack(">HBB3I", 0, 8, 3, 3 * 10**6 // 784 + 1, 28, 28)
    (folder / "mnist" / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(header + zeros, 1))
    for half in ("train", "test"):
        scipy.io.savemat(folder / f"{half}_32x32.mat", {"X": np.zeros((32, 32, 3, 977), np.uint8), "y": [[1]]},
                         do_compression=True)
    for name in ("usps.bz2", "usps.t.bz2"):
        (folder / name).write_bytes(bz2.compress(zeros, 1))
    return {"mnist": "train-images-idx3-ubyte.gz", "svhn": "train_32x32.mat", "usps": "usps.bz2"}


def test_a_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What unpacks to more than a hundred times its size, and to more than does no harm, is named."""
    assert most_unpacked(1) == 2**28
    monkeypatch.setattr(files, "HARMLESS", 2**20)
    for name, file in bombs(tmp_path).items():
        assert file in (said := refusal(name, tmp_path)), said
        assert "must be saved uncompressed" in said or "bytes it announces. Got" in said


def test_hdf5_is_what_it_holds_itself(tmp_path: Path) -> None:
    """Links to other files, numbers in other files, and shapes of which nothing is stored are refused."""
    h5py = pytest.importorskip("h5py", reason="h5py is an extra")
    (tmp_path / "outside").write_bytes(bytes(256 * 8))

    def usps(**data: Any) -> str:
        with h5py.File(tmp_path / "usps.h5", "w") as file:
            for half in ("train", "test"):
                file.create_dataset(f"{half}/data", **data)
                file[f"{half}/target"] = np.zeros(1, np.int64)
        return refusal("usps", tmp_path)

    assert "holds no plain numbers of its own" in usps(shape=(1, 256), dtype="f8",
                                                       external=[(str(tmp_path / "outside"), 0, 2048)])
    assert "must be saved uncompressed" in usps(shape=(10**7, 256), dtype="f4", chunks=(1, 256))
    assert "holds no plain numbers of its own" in usps(data=["text"] * 2)
    x, y, _, _ = images("usps")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["half/data"], file["half/target"] = (x.reshape(len(x), -1) / 255).astype(np.float32), y
    with h5py.File(tmp_path / "usps.h5", "w") as file:
        for half in ("train", "test"):
            file[half] = h5py.ExternalLink(str(tmp_path / "other.h5"), "/half")
    assert "a link, where only" in refusal("usps", tmp_path)


def test_matlab_files_hold_numbers(tmp_path: Path) -> None:
    """Cells may hold cells without end."""
    for half in ("train", "test"):
        scipy.io.savemat(tmp_path / f"{half}_32x32.mat", {"X": np.array([[{}]], dtype=object), "y": [[1]]})
    assert "where only numbers may stand" in refusal("svhn", tmp_path)


FILES = {"mnist": "mnist.npz", "kmnist": "kmnist/train-images-idx3-ubyte", "cifar10": "data_batch_1",
         "svhn": "train_32x32.mat", "usps": "usps.bz2"}


@pytest.mark.parametrize(("name", "file"), FILES.items())
@pytest.mark.parametrize("kind", ["a pipe", "a device"])
def test_only_regular_files_are_read(name: str, file: str, kind: str, tmp_path: Path) -> None:
    """A pipe would be waited for without end, and a device read without end; a link to a file is followed."""
    write_cifar10(tmp_path, images("cifar10"))
    write_idx(tmp_path / "kmnist", images("kmnist"))
    for other in ("test_32x32.mat", "usps.t.bz2"):
        (tmp_path / other).touch()
    (tmp_path / file).unlink(missing_ok=True)
    if kind == "a pipe":
        os.mkfifo(tmp_path / file)
    else:
        (tmp_path / file).symlink_to("/dev/zero")
    assert refusal(name, tmp_path).endswith(f"{file} must be a regular file. It is {kind}: remove it, or choose another"
                                            " place.")


def test_a_link_to_a_data_file_is_followed(tmp_path: Path) -> None:
    """People keep data sets elsewhere."""
    write_npz(tmp_path / "elsewhere.npz", images("mnist"))
    (tmp_path / "mnist.npz").symlink_to(tmp_path / "elsewhere.npz")
    assert same(open_dataset("mnist", tmp_path), images("mnist"))
