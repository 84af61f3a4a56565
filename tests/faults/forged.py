"""Forged run folders, and what everybody who reads one makes of them: a sentence, or no harm; never a traceback.

    python tests/faults/forged.py [--count N] [--first N]

A real run that has ended and one that was stopped are copied, one thing in the copy is forged, and the copy is sealed
anew, so that no digest shields its readers. The same number always forges the same thing.
"""

import argparse
import io
import json
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import tomllib
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from run_folders import resealed

import umbel
from umbel.errors import UmbelError, UmbelWarning
from umbel.pages import page
from umbel.reproduce.measures import MEASURES, Finished
from umbel.runs import compare, screen
from umbel.runs.experiment import Experiment
from umbel.runs.recipe import to_toml
from umbel.runs.sealed import Sealed, sealed
from umbel.runs.session import Session

SECONDS = 60  # of one reader
DEEP = "@deep@"  # stands for what no encoder of JSON would write
VALUES: list[Any] = [
    None, True, 0, -1, 1, 0.5, 2**63, 10**400, 1e308, float("nan"), float("inf"), "", "text", "[/x]",
    "\x1b[2J", "\ud800", "<script>alert(1)</script>", "long" * 100_000, [], [[]], {}, {"a": 1}, {"c000": {"c000": 1}},
    DEEP, f"{DEEP}{DEEP}",
]
JSON = ("result.json", "clusters.json", "rounds.jsonl", "checkpoint.json", "env.json", "model.json", "recipe.toml")
ODD = re.compile(r"(?<![\w-])(nan|inf|None|undefined|NaN|Infinity)(?![\w-])")
Path_ = tuple[Any, ...]


class Verdict(NamedTuple):
    """What became of one forged folder."""

    number: int
    forged: str
    kind: str  # refused, harmless, failed
    complaints: list[str]  # of those who failed


# Forging


def places(value: Any, path: Path_ = ()) -> Iterator[Path_]:
    """Every key path of some JSON, the whole included."""
    yield path
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, part in inside:
        yield from places(part, (*path, name))


def changed(value: Any, path: Path_, change: Callable[[Any, Any], Any]) -> Any:
    """The same JSON, its container at a path changed by `change(container, key)`; of the whole, its answer."""
    if not path:
        return change(None, value)
    place = value
    for name in path[:-1]:
        place = place[name]
    change(place, path[-1])
    return value


def forge_json(folder: Path, name: str, draw: random.Random) -> str:
    """Another value somewhere, a key less, or one more."""
    file = folder / name
    text = file.read_text()
    lines = name == "rounds.jsonl"
    value = [json.loads(line) for line in text.splitlines()] if lines else (
        tomllib.loads(text) if name == "recipe.toml" else json.loads(text))
    path = draw.choice(list(places(value))[1:])
    other, what = draw.choice(VALUES), draw.choice(["set", "set", "set", "set", "drop", "more", "copy"])

    def change(place: Any, key: Any) -> None:
        if what == "drop":
            del place[key]
        elif what == "copy" and isinstance(place, list):
            place.append(place[key])
        elif what == "more" and isinstance(place, dict):
            place[draw.choice(["more", "", "[/x]", "c999", "0", "-1", "a/b"])] = other
        else:
            place[key] = other

    value = changed(value, path, change)
    if name == "checkpoint.json" and path != ("seal",):
        with suppress(ValueError):
            value = sealed(value)
    said = f"{name} {'.'.join(map(str, path))} {what} {str(other)[:20]!r}"
    try:
        written = "".join(json.dumps(line) + "\n" for line in value) if lines else (
            to_toml(value) if name == "recipe.toml" else json.dumps(value))
    except (TypeError, ValueError, AttributeError):
        written = "[" * 5
    for word, levels in ((f'"{DEEP}{DEEP}"', 100_000), (f'"{DEEP}"', 300)):
        written = written.replace(word, "[" * levels + "]" * levels)
    file.write_bytes(written.encode("utf-8", "surrogatepass"))
    return said


def forge_tensors(folder: Path, draw: random.Random) -> str:
    """A tensor with another name, shape, type or number; a header that lies."""
    file = draw.choice(sorted(folder.glob("*.safetensors")))
    leaves = load_file(file)
    name = draw.choice(sorted(leaves))
    leaf = leaves[name]
    what = draw.choice(["nan", "inf", "huge", "range", "drop", "name", "flat", "longer", "type", "more", "both", "deep",
                        "0-d", "empty", "zero", "header", "cut"])
    if what in ("nan", "inf", "huge", "range") and not leaf.numel():
        what = "drop"
    huge = 2**62 if not leaf.dtype.is_floating_point else 1e38 if leaf.dtype == torch.float32 else 1e300
    if what in ("nan", "inf", "huge"):
        leaves[name] = torch.full_like(leaf, float(what) if what != "huge" and leaf.dtype.is_floating_point else huge)
    elif what == "range":
        leaves[name] = leaf + draw.choice([-1, 1, 5, 10**6])
    elif what == "drop":
        del leaves[name]
    elif what == "name":
        leaves[name + draw.choice(["x", "/x", "\x1b", ""]) if draw.random() < 0.7 else "x/" + name] = leaves.pop(name)
    elif what == "flat":
        leaves[name] = leaf.flatten()[None, None]
    elif what == "longer":
        leaves[name] = torch.cat([leaf, leaf]) if leaf.dim() else leaf[None]
    elif what == "type":
        leaves[name] = leaf.to(draw.choice([torch.float16, torch.bool, torch.int32, torch.uint64, torch.complex64,
                                            torch.float64, torch.int64, torch.bfloat16]))
    elif what == "more":
        leaves[draw.choice(["more", "models/more", "labels2", "slots/x", "c000/last", "c9/last/x"])] = leaf
    elif what == "both":
        leaves[f"{name}/x"] = leaf
    elif what == "deep":
        leaves["/".join("a" * 2000)] = leaf
    elif what == "0-d":
        leaves[name] = leaf.flatten()[:1].reshape(()) if leaf.numel() else leaf
    elif what == "empty":
        leaves[name] = leaf[:0] if leaf.dim() else leaf
    save_file({each: part.clone().contiguous() for each, part in leaves.items()}, file)
    if what == "zero":
        head = json.dumps({name: {"dtype": "F32", "shape": [2**40, 0], "data_offsets": [0, 0]}}).encode()
        file.write_bytes(len(head).to_bytes(8, "little") + head)
    elif what == "header":
        file.write_bytes((2**40).to_bytes(8, "little") + file.read_bytes()[8:])
    elif what == "cut":
        file.write_bytes(file.read_bytes()[: draw.choice([0, 7, 8, 100, -1])])
    return f"{file.name} {name} {what}"


def forge_lines(folder: Path, draw: random.Random) -> str:
    """Lines of rounds.jsonl twice, in another order, fewer, or half of one."""
    file = folder / "rounds.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    what = draw.choice(["twice", "swap", "fewer", "half", "none", "first"])
    at = draw.randrange(len(lines))
    lines = {"twice": [*lines[: at + 1], *lines[at:]], "swap": lines[::-1], "fewer": [*lines[:at], *lines[at + 1 :]],
             "half": [*lines[:-1], lines[-1][: len(lines[-1]) // 2]], "none": [], "first": lines[:1]}[what]
    file.write_bytes(b"".join(lines))
    return f"rounds.jsonl {what} {at}"


def forge_file(folder: Path, draw: random.Random) -> str:
    """A file that is another one, a part of one, or none at all."""
    names = sorted(path.name for path in folder.iterdir() if path.name != "partition.npz")
    one, other = draw.choice(names), draw.choice(names)
    what = draw.choice(["swap", "swap", "bytes", "bytes", "empty", "gone", "link", "pipe", "folder"])
    file = folder / one
    if what == "swap":
        shutil.copyfile(folder / other, file) if one != other else None
    elif what == "bytes":
        content = bytearray(file.read_bytes())
        for _ in range(3):
            content[draw.randrange(len(content))] = draw.randrange(256)
        file.write_bytes(content)
    elif what == "empty":
        file.write_bytes(b"")
    else:
        shutil.move(file, folder.parent / f"moved-{one}")
        if what == "link":
            file.symlink_to(folder.parent / f"moved-{one}")
        elif what == "pipe":
            os.mkfifo(file)
        elif what == "folder":
            file.mkdir()
    return f"{one} {what} {other if what == 'swap' else ''}"


def forge(folder: Path, number: int) -> str:
    """One thing, and the seal anew."""
    draw = random.Random(number)
    how = draw.random()
    if how < 0.6:
        here = [name for name in JSON if (folder / name).exists()]
        said = forge_json(folder, draw.choice(here), draw)
    else:
        said = (forge_tensors if how < 0.85 else forge_lines if how < 0.92 else forge_file)(folder, draw)
    if not said.startswith("checkpoint.json") and all(path.is_file() for path in folder.iterdir()):
        with suppress(ValueError, KeyError, OSError, TypeError, AttributeError, RecursionError):
            resealed(folder)
    return said


# Reading


def runs(out: Path) -> dict[str, Path]:
    """One run that has ended, and one that was stopped."""
    folders = {}
    for name, method in (("ended", "pacfl"), ("stopped", "flag")):
        experiment = Experiment(method=method, data="digits", scenario="rotation-4", clients=4, rounds=2, device="cpu",
                                settings={"epochs": 1})
        session = Session.start(experiment, out / name / f"{method}-s0")
        for done in session.rounds():
            if name == "stopped" and done.index == 0:
                break
        session.finish() if name == "ended" else session.close()
        folders[name] = session.folder.path
    return folders


def reported(folder: Path) -> None:
    """The page, in which no number is none."""
    text = umbel.report(folder, folder.parent / "page.html").read_text()
    for ours in (page.drawing_library(), page.asset("page.js"), page.asset("page.css")):
        text = text.replace(ours, "")
    assert len(text) < 1e7, "a page of more than ten megabytes"
    odd = ODD.search(re.sub(r'(?s)<pre tabindex="0" aria-label="recipe.toml">.*?</pre>', "", text))
    assert odd is None, f"the page says {text[odd.start() - 40 : odd.end() + 10]!r}"


def loaded(folder: Path) -> None:
    """The result, and what it says of itself."""
    result = umbel.load(folder)
    repr(result), result._repr_html_(), result.curve, result.to_pandas(), result.to_pandas("rounds")
    with suppress(UmbelError):
        repr(result.score)
    result.predict(np.zeros((2, 1, 8, 8), dtype=np.uint8), client=result.names[0])


def shown(folder: Path) -> None:
    """What the terminal says."""
    info = Sealed(folder).result()
    console = Console(file=io.StringIO(), width=80)
    console.print(screen.result_table(info))
    for line in screen.result_lines(info):
        console.print(line, markup=False)


def compared(folder: Path) -> None:
    """The line of a comparison."""
    one = Experiment(method=folder.name.partition("-")[0], data="digits")
    plan = compare.Plan({folder.name: one}, {folder.name: {}})
    lines = compare.table(folder.parent, plan)
    Console(file=io.StringIO(), width=80).print(screen.compare_table(lines, "[/x]"))
    compare.write(folder.parent, lines)


def measured(folder: Path) -> None:
    """What a table of a paper reads."""
    for name in ("accuracy", "ari", "converged", "smallest", "cut", "server_seconds"):
        of = MEASURES[name].of
        assert of is not None
        of(Finished(folder, {}))


def admitted(folder: Path) -> None:
    """A newcomer."""
    draw = np.random.default_rng(0)
    rows = (draw.integers(0, 255, (20, 1, 8, 8)).astype(np.uint8), np.arange(20) % 10)
    umbel.admit(folder, rows, epochs=1)


def resumed(folder: Path) -> None:
    """One round more."""
    umbel.resume(folder, rounds=3)


READERS = (shown, loaded, reported, compared, measured, admitted, resumed)  # the last changes the folder


@contextmanager
def at_most(seconds: int) -> Iterator[None]:
    """An error, a real one, after so many seconds."""
    def ring(*_: object) -> None:
        raise TimeoutError(f"more than {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def judge(number: int, kept: dict[str, Path], scratch: Path) -> Verdict:
    """Forge a folder, and let everybody read it."""
    which = "ended" if number % 3 else "stopped"
    place = scratch / str(number)
    folder = place / kept[which].name
    shutil.copytree(kept[which], folder)
    said = forge(folder, number)
    refused, complaints = 0, []
    for reader in READERS:
        try:
            with at_most(SECONDS), warnings.catch_warnings():
                warnings.simplefilter("error")
                warnings.simplefilter("ignore", UmbelWarning)
                reader(folder)
        except UmbelError as error:
            refused += 1
            if "\n" in str(error) or len(str(error)) > 1000:
                complaints.append(f"{reader.__name__}: a sentence of {len(str(error))} letters: {str(error)[:200]!r}")
        except Exception as error:
            trace = error.__traceback__
            while trace is not None and trace.tb_next is not None:
                trace = trace.tb_next
            at = f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}" if trace else ""
            complaints.append(f"{reader.__name__}: {type(error).__name__} at {at}: {str(error)[:200]}")
    shutil.rmtree(place)
    kind = "failed" if complaints else "refused" if refused else "harmless"
    return Verdict(number, f"{which}: {said}", kind, complaints)


def campaign(numbers: range, scratch: Path) -> Iterator[Verdict]:
    """The verdict on every forged folder of these numbers."""
    kept = runs(scratch / "runs")
    for number in numbers:
        yield judge(number, kept, scratch)


def main() -> int:
    """Print what failed, and the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=300, help="forged folders")
    parser.add_argument("--first", type=int, default=0, help="number of the first")
    asked = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (2**35, 2**35))  # a header must not take all of the memory
    kinds: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as scratch:
        for verdict in campaign(range(asked.first, asked.first + asked.count), Path(scratch)):
            kinds[verdict.kind] += 1
            for complaint in verdict.complaints:
                print(f"{verdict.number} {verdict.forged}: {complaint}", flush=True)
    print(f"{kinds.total()} forged folders: {kinds['refused']} refused, {kinds['harmless']} harmless,"
          f" {kinds['failed']} failed")
    return int(kinds["failed"] > 0)


if __name__ == "__main__":
    sys.exit(main())
