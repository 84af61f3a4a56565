"""Where data come from: `load("fashion-mnist")` finds a set on this machine, or fetches it, and checks it.

The order is: the folder given, $UMBEL_DATA, the system's own packages, the Hugging Face hub. `digits` and
`diabetes` are inside scikit-learn. A file that does not fit its set is refused in one sentence, never repaired.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from umbel import plugins
from umbel.data import formats, natural
from umbel.data.clients import IntArray
from umbel.data.formats import Halves, Piece, Reader
from umbel.data.rows import laid_out, site, weights
from umbel.errors import UmbelError, unknown
from umbel.files import digester
from umbel.nets import model_for
from umbel.nets.objective import Classify, NextToken, Objective, Regress, objective_of
from umbel.registry import Registry
from umbel.seeds import generator


@dataclass(frozen=True, eq=False)
class Dataset:
    """A loaded set: uint8 images (n, channels, height, width), contiguous, or float32 rows; and what to learn of them.

    `classes` alone stand for a classification, with labels from 0; another objective brings its own number of them.
    """

    name: str
    x_train: NDArray[Any]
    y_train: NDArray[Any]
    x_test: NDArray[Any]
    y_test: NDArray[Any]
    classes: int = 0
    part: str = ""  # "20,000 of 50,000" training rows; empty for the whole set
    objective: Objective = cast(Objective, None)  # by default a classification
    levels: tuple[int, ...] = ()  # of each column of a table: 0 = a number, k = a category with k levels; () = none
    clients: tuple[str, ...] = ()  # whose rows they are in life, by name; () = nobody's
    owners: tuple[IntArray, IntArray] | None = None  # of training and of test rows: the row's place in `clients`
    columns: tuple[str, ...] = ()  # of a raw table, which is to be prepared first (prepare.py); () = rows are ready
    understood: Mapping[str, Any] = field(default_factory=dict)  # of a file: columns, kinds, what was left out
    validation: NDArray[np.bool_] | None = None  # of the training rows, which nobody trains on; None = drawn
    ordered: bool = False  # an owner's rows are in the order of time, training rows before test rows
    late: NDArray[np.bool_] | None = None  # of ordered training rows: an owner's last, which choose; None = a tenth
    weights: NDArray[np.float32] | None = None  # of the training rows: what their losses are multiplied by; None = 1
    redrawn: float = 0.0  # the share of an owner's rows that each seed draws anew as test rows; 0 = the split is fixed

    def __post_init__(self) -> None:
        if self.objective is None and not self.classes:
            raise UmbelError(f"The data set '{self.name}' must say what a model is for: give classes=..., or"
                             " objective=Regress() for numbers.")
        goal = objective_of(self.classes if self.objective is None else self.objective)
        if self.classes not in (0, goal.classes):
            raise UmbelError(f"The data set '{self.name}' must have the {goal.classes} classes of its objective."
                             f" Got {self.classes} instead.")
        self._refuse_owners()
        if self.weights is not None:
            weight = weights(f"the set '{self.name}'", self.weights, len(self.y_train))
            object.__setattr__(self, "weights", weight)
        object.__setattr__(self, "objective", goal)
        object.__setattr__(self, "classes", goal.classes)

    def _refuse_owners(self) -> None:
        """Each row has an owner, who has a name, where there are owners at all."""
        halves = [] if self.owners is None else list(zip(self.owners, (self.y_train, self.y_test), strict=True))
        whole = all(own.shape == y.shape[:1] and np.isin(own, range(len(self.clients))).all() for own, y in halves)
        if bool(self.clients) != bool(halves) or not whole:
            raise UmbelError(f"The data set '{self.name}' must say of each row whose it is: owners, an array for the"
                             f" training rows and one for the test rows, of places in its {len(self.clients)} clients.")

    def checked(self) -> "Dataset":
        """A set of one's own as it must be; what does not fit is refused. A raw table may have gaps."""
        if self.columns:
            y_train, y_test = (self.objective.check(y, f"the set '{self.name}'") for y in (self.y_train, self.y_test))
            return replace(self, y_train=y_train, y_test=y_test)
        arrays = (self.x_train, self.y_train, self.x_test, self.y_test)
        train, test = site(f"the set '{self.name}'", arrays, self.objective)
        return replace(self, x_train=train[0], y_train=train[1], x_test=test[0], y_test=test[1])

    @cached_property
    def digest(self) -> str:
        """32 hex digits of all its rows, inputs and targets alike: a plan fits no other rows."""
        digest = digester()
        digest.update(self.name.encode())
        for array in (self.x_train, self.y_train, self.x_test, self.y_test):
            digest.update(f" {array.dtype.kind}{array.dtype.itemsize} {array.shape} ".encode())
            digest.update(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).data)
        if self.validation is not None:
            digest.update(self.validation.tobytes())
        if self.weights is not None:
            digest.update(b"weights" + self.weights.astype("<f4").tobytes())
        return digest.hexdigest()

    @property
    def label(self) -> str:
        """The name, with the part where it is one: what a result and a report call the data."""
        return f"{self.name} ({self.part})" if self.part else self.name


@dataclass(frozen=True)
class Source:
    """What is known of a set before it is loaded."""

    title: str
    terms: str
    train: int  # rows of the whole set
    test: int
    shape: tuple[int, ...]  # (channels, height, width) of images
    mean: tuple[float, ...]  # of pixels in [0, 1], one number a channel; one a column of a table
    std: tuple[float, ...]
    objective: Objective = Classify(10)
    levels: tuple[int, ...] = ()  # of each column of a table, as a Dataset has them
    clients: int = 0  # whose rows they are in life
    cite: str = ""  # whom its terms ask to name
    tokens: bool = False  # inputs are whole numbers that stand for words
    ordered: bool = False  # as a Dataset has it
    redrawn: float = 0.0  # as a Dataset has it
    raw: bool = False  # a table that is to be prepared first

    @property
    def classes(self) -> int:
        """How many there are; 0 where targets are none."""
        return self.objective.classes

    @property
    def model(self) -> str:
        """The network by default."""
        return model_for(self.shape, self.tokens)

    @property
    def natural(self) -> bool:
        """Whether its rows say whose they are."""
        return self.clients > 0

    @property
    def inputs(self) -> str:
        """What its inputs are, in the words of `rows`."""
        return "tokens" if self.tokens else "pixels" if self.images else "numbers"

    @property
    def images(self) -> bool:
        """Whether its inputs are images."""
        return len(self.shape) == 3


DATASETS: dict[str, Source] = {
    "digits": Source(
        "Digits, 8x8, inside scikit-learn", "BSD-3-Clause with scikit-learn; UCI: CC BY 4.0",
        1_438, 359, (1, 8, 8), mean=(0.3053,), std=(0.3760,),
    ),
    "mnist": Source(
        "MNIST, handwritten digits", "usually given as CC BY-SA 3.0",
        60_000, 10_000, (1, 28, 28), mean=(0.1307,), std=(0.3081,),
    ),
    "fashion-mnist": Source(
        "Fashion-MNIST, clothes", "MIT",
        60_000, 10_000, (1, 28, 28), mean=(0.1307,), std=(0.3081,),  # MNIST's, as PACFL does; its own: 0.2860, 0.3530
    ),
    "kmnist": Source(
        "KMNIST, cursive Japanese", "CC BY-SA 4.0",
        60_000, 10_000, (1, 28, 28), mean=(0.1880,), std=(0.3450,),
    ),
    "cifar10": Source(
        "CIFAR-10, objects and animals in colour", "none stated; cite Krizhevsky 2009",
        50_000, 10_000, (3, 32, 32), mean=(0.4914, 0.4822, 0.4465), std=(0.2023, 0.1994, 0.2010),
    ),
    "cifar100": Source(
        "CIFAR-100, fine labels", "none stated; cite Krizhevsky 2009",
        50_000, 10_000, (3, 32, 32), mean=(0.507, 0.487, 0.441), std=(0.267, 0.256, 0.276), objective=Classify(100),
    ),
    "svhn": Source(
        "SVHN, house numbers in colour, cropped", "non-commercial use only",
        73_257, 26_032, (3, 32, 32), mean=(0.4377, 0.4438, 0.4728), std=(0.198, 0.201, 0.197),
    ),
    "usps": Source(
        "USPS, digits of postcodes", "public, none stated",
        7_291, 2_007, (1, 16, 16), mean=(0.2539,), std=(0.3842,),
    ),
    "diabetes": Source(  # Efron et al. 2004; all constants are of the training half
        "Diabetes, a disease's progress, inside scikit-learn", "BSD-3-Clause with scikit-learn",
        354, 88, (10,),
        mean=(0.0004, -0.0010, 0.0021, -0.0005, 0.0, -0.0006, -0.0007, 0.0004, 0.0009, -0.0012),
        std=(0.0477, 0.0475, 0.0488, 0.0486, 0.0489, 0.0483, 0.0467, 0.0483, 0.0497, 0.0474),
        objective=Regress(centre=152.0, scale=77.1, bins=(86.25, 140.5, 211.25)),  # mean, std and quartiles
    ),
    "heart-disease": Source(
        "Heart disease at four hospitals, 13 findings", "CC BY 4.0 as far as known",
        690, 230, (13,), mean=natural.HEART_MEAN, std=natural.HEART_STD,
        objective=Classify(2, labels=("healthy", "ill")), levels=natural.HEART_LEVELS, clients=4,
        redrawn=natural.TESTED,
        cite="Andras Janosi, M.D., Hungarian Institute of Cardiology, Budapest; William Steinbrunn, M.D., University"
             " Hospital, Zurich; Matthias Pfisterer, M.D., University Hospital, Basel; Robert Detrano, M.D., Ph.D.,"
             " V.A. Medical Center, Long Beach and Cleveland Clinic Foundation",
    ),
    "wisdm": Source(
        "WISDM 1.1, what 36 people do, by their phones", "free; its readme.txt goes with it",
        4_057, 1_361, (43,), mean=natural.WISDM_MEAN, std=natural.WISDM_STD,
        objective=Classify(6, labels=natural.ACTIVITIES), clients=36, redrawn=natural.TESTED,
        cite="Kwapisz, Weiss and Moore, Activity Recognition using Cell Phone Accelerometers, SensorKDD 2010",
    ),
    "beijing-air": Source(
        "Beijing's air at 12 stations: PM2.5 in 1, 6, 24 hours", "CC BY 4.0 as far as known",
        21_850, 8_941, (24, 23), mean=(0.0,), std=(1.0,),  # its reader scales, column by column
        objective=Regress(columns=3, centre=81.3, scale=79.0, bins=(22.0, 58.0, 113.0), unit="µg/m³",
                          labels=("1 hour ahead", "6 hours ahead", "24 hours ahead")), clients=12, ordered=True,
        cite="Zhang et al., Cautionary Tales on Air-Quality Improvement in Beijing, Proceedings of the Royal Society A"
             " 473, 2017",
    ),
    "shakespeare": Source(
        "Shakespeare's 447 largest roles, the next character", "public domain",
        37_846, 9_463, (80,), mean=(0.0,), std=(1.0,),
        objective=NextToken(natural.VOCABULARY, natural.LENGTH), clients=447, tokens=True,
        ordered=True, redrawn=1 - natural.LEARNT,
    ),
}

OWN: Registry[Dataset] = Registry("data set", {}, group="umbel.data", admit="umbel.data.sources:admitted", files=True)
"""Sets that umbel does not bring, by the name that a person types: each is loaded when it is asked for."""

READERS: dict[str, tuple[Reader, ...]] = {  # a set's own formats; npz is tried after them
    "mnist": (formats.idx,),
    "fashion-mnist": (formats.idx,),
    "kmnist": (formats.idx, formats.kmnist),
    "cifar10": (formats.cifar10,),
    "cifar100": (formats.cifar100,),
    "svhn": (formats.svhn,),
    "usps": (formats.usps_libsvm, formats.usps_h5),
}

SPELLINGS: dict[str, tuple[str, ...]] = {  # other names of folders and npz files, lower case, letters and digits only
    "fashion-mnist": ("fmnist", "fashion"),
    "kmnist": ("kuzushijimnist",),
    "cifar10": ("cifar10batchespy", "cifar10python"),
    "cifar100": ("cifar100python",),
}

SYSTEM: dict[str, tuple[str, Path]] = {  # set -> Debian's package, and where it puts the files
    "fashion-mnist": ("dataset-fashion-mnist", Path("/usr/share/datasets/fashion-mnist")),
}

HUB: dict[str, tuple[str, str | None, str, str]] = {  # set -> repository, configuration, columns; KMNIST has none
    "mnist": ("ylecun/mnist", None, "image", "label"),
    "fashion-mnist": ("zalando-datasets/fashion_mnist", None, "image", "label"),
    "cifar10": ("uoft-cs/cifar10", None, "img", "label"),
    "cifar100": ("uoft-cs/cifar100", None, "img", "fine_label"),
    "svhn": ("ufldl-stanford/svhn", "cropped_digits", "image", "label"),
    "usps": ("flwrlabs/usps", None, "image", "label"),
}


def admitted(name: str, thing: Any) -> Dataset:
    """A set that umbel does not bring: a Dataset, or a function that returns one."""
    loaded = thing if isinstance(thing, Dataset) or not callable(thing) else plugins.called(name, thing)
    if not isinstance(loaded, Dataset):
        raise UmbelError("A data set must be a umbel.Dataset, or a function that returns one of nothing. Got"
                         f" {type(loaded).__name__} from '{name}' instead.")
    return loaded.checked()


def known(name: str) -> bool:
    """Whether a set is known by this name, umbel's own or another."""
    return name in DATASETS or name in OWN


def source_of(name: str) -> Source:
    """What is known of a set; one that umbel does not bring is loaded for it, and is never scaled."""
    if name in DATASETS:
        return DATASETS[name]
    own = OWN.find(name)
    return Source(own.name, "", len(own.y_train), len(own.y_test), own.x_train.shape[1:], (0.0,), (1.0,), own.objective,
                  levels=own.levels, clients=len(own.clients), tokens=own.x_train.dtype == np.int64,
                  raw=bool(own.columns))


def open_dataset(name: str, folder: Path | None = None) -> Dataset:
    """The set of that name, from the first place that has it; `folder` is looked into first."""
    if name not in DATASETS and name in OWN:
        return OWN[name]
    if name not in DATASETS:
        raise unknown("data set", name, [*DATASETS, *OWN.added])
    if name == "digits":
        return _dataset(name, _digits())
    if name == "diabetes":
        return _diabetes()
    folders = list(dict.fromkeys(_folders(name, folder)))
    if name in natural.NATURAL:
        for place in folders:
            if found := _natural_in(name, place):
                return found
    for place in folders if name in READERS else ():
        if halves := _in_folder(name, place):
            return _dataset(name, halves)
    if halves := _from_hub(name):
        return _dataset(name, halves)
    looked = f" in {' or '.join(map(str, folders))}" if folders else ""
    raise UmbelError(f"The data set '{name}' was not found{looked}: {_ways(name)}.")


def _ways(name: str) -> str:
    """What a person can do so that the set is found."""
    ways = ["put its files in a folder and name that with --data-dir or $UMBEL_DATA"]
    if name in SYSTEM:
        ways.append(f"install the system package {SYSTEM[name][0]}")
    if name in HUB:
        return f"{', '.join(ways)}, or fetch it from the Hugging Face hub with pip install umbel[hub]"
    return f"{' or '.join(ways)} (umbel knows no copy of it on the Hugging Face hub)"


# Where


def _folders(name: str, folder: Path | None) -> Iterator[Path]:
    """The folders to look into, in order. One that a person named must be there."""
    named = {"--data-dir": folder, "$UMBEL_DATA": os.environ.get("UMBEL_DATA")}
    for way, path in named.items():
        if path:
            place = Path(path).expanduser().resolve()
            if not place.is_dir():
                raise UmbelError(f"The data folder ({way}) must be a folder that exists. Got '{path}' instead.")
            yield place
    if name in SYSTEM and SYSTEM[name][1].is_dir():
        yield SYSTEM[name][1]


def _in_folder(name: str, folder: Path) -> Halves | None:
    """The set's own formats in the folder and in subfolders that name the set, then npz files."""
    places = _all_places(name, folder)
    for reader in READERS[name]:
        for place in places:
            if halves := reader(place, _names(name, place)):
                return halves
    for place in places:
        if path := _npz(name, place):
            return formats.whole_npz(path)
    return None


def _natural_in(name: str, folder: Path) -> Dataset | None:
    """A set with clients of its own, as it was published or as one npz."""
    for place in _all_places(name, folder):
        if found := natural.NATURAL[name](place, _names(name, place), _npz(name, place)):
            return _natural(name, found)
    return None


def _all_places(name: str, folder: Path) -> list[Path]:
    try:
        return list(_places(name, folder))
    except OSError as error:
        raise UmbelError(f"The data folder '{folder}' must be readable. Got: {error}.") from error


def _places(name: str, folder: Path, depth: int = 2) -> Iterator[Path]:
    """The folder, then its subfolders that name the set: FashionMNIST/raw, cifar10/cifar-10-batches-py; natural."""
    yield folder
    for child in sorted(folder.iterdir()) if depth else ():
        named = _names(name, child) or (child.name == "natural" and name in natural.NATURAL)
        if named and child.is_dir():
            yield from _places(name, child, depth - 1)


def _names(name: str, place: Path) -> bool:
    """Whether a folder is named as the set; of torchvision's `raw`, the folder around it."""
    return _spells(name, place.parent.name if place.name == "raw" else place.name)


def _spells(name: str, text: str) -> bool:
    plain = re.sub("[^a-z0-9]", "", text.lower())
    return plain == name.replace("-", "") or plain in SPELLINGS.get(name, ())


def _npz(name: str, place: Path) -> Path | None:
    """cifar10.npz, or a part with its size: cifar10-20k.npz. Not cifar10-c.npz, which is another set."""
    files = [path for path in sorted(place.glob("*.npz")) if not path.is_dir()]
    if whole := [path for path in files if _spells(name, path.stem)]:
        return whole[0]
    parts = [path for path in files if (cut := re.fullmatch(r"(.+)[-_]\d+k?", path.stem)) and _spells(name, cut[1])]
    if len(parts) > 1:
        names = ", ".join(path.name for path in parts)
        raise UmbelError(f"The folder '{place}' must hold one part of {name}. Got {names}.")
    return parts[0] if parts else None


# What


def _digits() -> Halves:
    """scikit-learn's digits; of each label a fifth is the test half, drawn by a fixed seed."""
    digits = import_module("sklearn.datasets").load_digits()
    x = np.rint(digits.images * (255 / 16)).astype(np.uint8)  # 0..16 -> 0..255
    y = digits.target.astype(np.int64)
    rng = generator("digits", "test")
    test = np.zeros(len(y), dtype=bool)
    for label in range(10):
        rows = rng.permutation(np.flatnonzero(y == label))
        test[rows[: round(len(rows) / 5)]] = True
    return [Piece(x[~test], y[~test], "digits")], [Piece(x[test], y[test], "digits")]


def _diabetes() -> Dataset:
    """scikit-learn's diabetes, columns scaled as it does; of five neighbours in target one is a test row."""
    loaded = import_module("sklearn.datasets").load_diabetes(scaled=True)
    x, y = loaded.data.astype(np.float32), loaded.target.astype(np.float32)
    rng = generator("diabetes", "test")
    test = np.zeros(len(y), dtype=bool)
    for neighbours in np.array_split(np.argsort(y, kind="stable"), DATASETS["diabetes"].test):
        test[rng.choice(neighbours)] = True
    return Dataset("diabetes", x[~test], y[~test], x[test], y[test], objective=DATASETS["diabetes"].objective)


def _from_hub(name: str) -> Halves | None:
    """The set from the Hugging Face hub, or its cache; None when the extra is not installed or the hub has no copy."""
    if name not in HUB:
        return None
    try:
        fetch = getattr(import_module("datasets"), "load_dataset", None)  # any folder called datasets imports as well
    except ImportError:
        fetch = None
    if fetch is None:
        return None
    repository, configuration, image, label = HUB[name]
    try:
        fetched = fetch(repository, configuration)
        halves = [_from_columns(fetched[half][image], fetched[half][label], repository) for half in ("train", "test")]
    except Exception as error:  # no network, no such page, a changed column: one sentence for all
        raise UmbelError(
            f"The data set '{name}' could not be fetched from the Hugging Face hub ({repository}): "
            f"{type(error).__name__}; put its files in a folder and name that with --data-dir or $UMBEL_DATA."
        ) from error
    return [halves[0]], [halves[1]]


def _from_columns(images: Iterable[Any], labels: Iterable[int], where: str) -> Piece:
    """Pictures, one by one (PIL's or arrays), and their labels as arrays."""
    return Piece(np.stack([np.asarray(image) for image in images]), np.asarray(list(labels)), f"'{where}'")


# Checks


def _natural(name: str, found: natural.Natural) -> Dataset:
    """The same as a set, whose arrays fit its source."""
    source, rows = DATASETS[name], len(found.y_train)
    part = f"{rows:,} of {source.train:,}" if rows != source.train else ""
    read = Dataset(name, *found[:4], part=part, objective=source.objective, levels=source.levels,
                   clients=found.clients, owners=found.owners, ordered=source.ordered,
                   redrawn=source.redrawn, late=found.late).checked()
    if read.x_train.shape[1:] != source.shape:
        raise UmbelError(f"The rows of {name} must be of the shape {source.shape}. Got {read.x_train.shape[1:]}.")
    return read


def _dataset(name: str, halves: Halves) -> Dataset:
    source = DATASETS[name]
    train, test = ([checked(piece, name, source.shape, source.classes) for piece in half] for half in halves)
    (x_train, y_train), (x_test, y_test) = _joined(train), _joined(test)
    counts = (("", len(y_train), source.train), ("test ", len(y_test), source.test))
    for (_, count, whole), half in zip(counts, halves, strict=True):
        if count > whole:
            raise UmbelError(f"The set {name} has at most {whole:,} images in {half[0].where}. Got {count:,} instead.")
    part = next((f"{half}{count:,} of {whole:,}" for half, count, whole in counts if count != whole), "")
    return Dataset(name, x_train, y_train, x_test, y_test, source.classes, part)


def _joined(pieces: list[tuple[NDArray[np.uint8], IntArray]]) -> tuple[NDArray[np.uint8], IntArray]:
    if len(pieces) == 1:  # no second copy of a large set
        return pieces[0]
    return np.concatenate([x for x, _ in pieces]), np.concatenate([y for _, y in pieces])


def checked(piece: Piece, name: str, shape: tuple[int, ...], classes: int) -> tuple[NDArray[np.uint8], IntArray]:
    """The piece as (n, channels, height, width) and int64 labels; refused with the rule that it breaks."""
    x, y, where = piece
    channels, height, width = shape
    if x.dtype != np.uint8:
        raise UmbelError(f"The images of {where} must be uint8, 0 to 255. Got {x.dtype} instead.")
    x = laid_out(x, shape)
    if x.shape[1:] != tuple(shape) or not len(x):
        wanted = f"(n, {channels}, {height}, {width}) or (n, {height}, {width}, {channels})"
        raise UmbelError(f"The images of {where} must have the shape {wanted} of {name}. Got {piece.x.shape} instead.")
    n, last = len(x), classes - 1
    if y.dtype.kind not in "iu" or y.shape not in ((n,), (n, 1)):
        given = f"{y.dtype} of shape {y.shape}"
        raise UmbelError(f"The labels of {where} must be {n} whole numbers, one an image. Got {given} instead.")
    if y.min() < 0 or y.max() > last:
        raise UmbelError(f"The labels of {where} must lie in 0 to {last}. Got {y.min()} to {y.max()} instead.")
    # Writable, because torch warns of arrays that are not.
    return np.require(x, np.uint8, ["C", "W"]), np.require(y.reshape(-1), np.int64, ["C", "W"])
