"""Damaged data files of every format: `python tests/faults/mutated_data.py --count 372` counts what comes of them.

A small file of each format is changed by a seeded mutation and read in a process of its own. It may be refused in a
sentence, or be read all the same; it fails where it ends in anything else, hangs, or takes more memory than is allowed.
"""

import argparse
import bz2
import gzip
import io
import pickle
import random
import struct
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np
import scipy.io
import sklearn.datasets  # noqa: F401 (once, not by every child that needs it)
from forks import forked

from umbel.data.plans import load_plan, plan_bytes, realise
from umbel.data.scenarios import draw
from umbel.data.sources import Dataset, open_dataset
from umbel.errors import UmbelError

SECONDS = 30.0  # to read a file of some kilobytes
MEMORY = 2**30  # bytes; a file may unpack to a quarter of that
REFUSED = 2


class Format(NamedTuple):
    """A kind of file: what else lies beside it, its name, its content, and how it is read."""

    beside: dict[str, bytes]
    name: str
    content: bytes
    read: Callable[[], object]


class Outcome(NamedTuple):
    """What came of a mutated file: refused, harmless or FAILED."""

    format: str
    mutation: str
    kind: str
    said: str


def images(*shape: int) -> np.ndarray:
    """Twelve images with their labels beside, always the same; not all are noise, so that files shrink."""
    x = np.random.default_rng(0).integers(0, 256, (12, *shape), dtype=np.uint8)
    x[:6] = 7
    return x


LABELS = np.arange(12) % 10


def npz(**arrays: np.ndarray) -> bytes:
    """A packed npz."""
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def idx(array: np.ndarray) -> bytes:
    """MNIST's own format."""
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def mat(array: np.ndarray, packed: bool) -> bytes:
    """SVHN's own format."""
    file = io.BytesIO()
    scipy.io.savemat(file, {"X": array.transpose(2, 3, 1, 0), "y": LABELS[:, None]}, do_compression=packed)
    return file.getvalue()


def h5() -> bytes:
    """USPS as HDF5."""
    file = io.BytesIO()
    with h5py.File(file, "w") as written:
        for half in ("train", "test"):
            written.create_dataset(f"{half}/data", data=images(256) / np.float32(255), compression="gzip")
            written[f"{half}/target"] = LABELS
    return file.getvalue()


def of_set(name: str, file: str, content: bytes, beside: dict[str, bytes]) -> Format:
    """A file of a data set."""
    return Format(beside, file, content, lambda: open_dataset(name, Path()))


@cache
def formats() -> dict[str, Format]:
    """One small file of each kind."""
    whole = npz(x_train=images(1, 28, 28), y_train=LABELS, x_test=images(1, 28, 28), y_test=LABELS)
    grey, digits = idx(images(28, 28)), idx(LABELS)
    mnist = {f"mnist/{half}-{what}-ubyte": data for half in ("train", "t10k")
             for what, data in (("images-idx3", grey), ("labels-idx1", digits))}
    batch = {b"data": images(3072), b"labels": LABELS.tolist(), b"filenames": [b"a.png"] * 12}
    text = "\n".join(" ".join([str(1 + y), *(f"{k}:{k % 7 / 7:.3f}" for k in range(1, 257))]) for y in LABELS).encode()
    mats = {name: mat(images(3, 32, 32), packed=False) for name in ("train_32x32.mat", "test_32x32.mat")}
    data = Dataset("made", images(1, 28, 28), LABELS, images(1, 28, 28), LABELS, 10)
    plan = plan_bytes(draw("iid+rotation-4", data, clients=1, test_mode="matched"))
    recipe = (b'method = "fedprox"\ndata = "digits"\nscenario = "rotation-4"\nclients = 8\nrounds = 3\nseed = 1\n'
              b'fraction = 0.5\njoin = "2@1"\n[settings]\nmu = 0.1\nlr = 0.01\nepochs = 2\n')
    return {
        "npz": of_set("mnist", "mnist.npz", whole, {}),
        "idx": of_set("mnist", "mnist/t10k-images-idx3-ubyte", grey, mnist),
        "idx.gz": of_set("mnist", "mnist/t10k-images-idx3-ubyte", gzip.compress(grey), mnist),
        **{f"pickle {p}": of_set("cifar10", "data_batch_1", pickle.dumps(batch, p),
                                 {"test_batch": pickle.dumps(batch, p)}) for p in (2, 4, 5)},
        "mat": of_set("svhn", "train_32x32.mat", mats["train_32x32.mat"], mats),
        "mat, packed": of_set("svhn", "train_32x32.mat", mat(images(3, 32, 32), packed=True), mats),
        "h5": of_set("usps", "usps.h5", h5(), {}),
        "svmlight": of_set("usps", "usps", text, {"usps.t": text}),
        "bz2": of_set("usps", "usps.bz2", bz2.compress(text), {"usps.t.bz2": bz2.compress(text)}),
        "partition": Format({}, "partition.npz", plan, lambda: realise(load_plan("partition.npz"), data)),
        "recipe": Format({}, "recipe.toml", recipe, _recipe),
    }


def _recipe() -> object:
    from umbel.runs.experiment import Experiment

    return Experiment.from_toml(Path("recipe.toml")).resolved()


def mutated(content: bytes, rng: random.Random) -> tuple[str, bytes]:
    """One change, and what it is called. Half of them are near the beginning, where headers are."""
    near = min(len(content), 400) if rng.random() < 0.5 else len(content)
    at, length = rng.randrange(near), rng.choice((1, 4, 16, 256))
    new = bytearray(content)
    name = rng.choice(("flip", "bytes", "cut", "insert", "double", "zero", "large"))
    match name:
        case "flip":
            new[at] ^= 1 << rng.randrange(8)
        case "bytes":
            new[at : at + length] = rng.randbytes(length)
        case "cut":
            del new[at:]
        case "insert":
            new[at:at] = rng.randbytes(length)
        case "double":
            new[at:at] = new[at : at + length]
        case "zero":
            new[at : at + length] = bytes(len(new[at : at + length]))
        case "large":  # a length, perhaps
            new[at : at + 4] = rng.choice((b"\xff\xff\xff\x7f", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"9999"))
    return f"{name} of {length} at {at}", bytes(new)


def read(format: Format, content: bytes, place: Path) -> tuple[str, str]:
    """refused, harmless or FAILED, and what was said."""
    for name, beside in {**format.beside, format.name: content}.items():
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_bytes(beside)

    def work() -> None:
        try:
            format.read()
        except UmbelError as error:
            print(error)
            sys.exit(REFUSED)

    ended = forked(work, place, SECONDS, MEMORY)
    lines = ended.said.strip().splitlines()
    if ended.code == 0:
        return "harmless", ""
    if ended.code == REFUSED and len(lines) == 1:
        return "refused", ended.said.strip()
    return "FAILED", f"exit {ended.code}: {ended.said.strip()[-600:]}"


def campaign(count: int, seed: int, place: Path) -> Iterator[Outcome]:
    """As many mutated files, of each format in turn."""
    kinds = list(formats().items())
    for k in range(count):
        name, format = kinds[k % len(kinds)]
        rng = random.Random(f"{seed} {k}")
        mutation, content = mutated(format.content, rng)
        folder = place / name
        folder.mkdir(exist_ok=True)
        yield Outcome(name, mutation, *read(format, content, folder))


def main() -> int:
    """Tell of every failure, and count."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--count", type=int, default=372)
    asked.add_argument("--seed", type=int, default=0)
    given = asked.parse_args()
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as place:
        for outcome in campaign(given.count, given.seed, Path(place)):
            counts[outcome.kind] += 1
            if outcome.kind == "FAILED":
                print(f"{outcome.format}, {outcome.mutation}: {outcome.said}")
    print(f"tried {given.count}, {', '.join(f'{kind} {counts[kind]}' for kind in ('refused', 'harmless', 'FAILED'))}")
    return bool(counts["FAILED"])


if __name__ == "__main__":
    sys.exit(main())
