"""Kills and disk errors at every change that a command makes to its files; then the same command once more.

    python tests/faults/disk.py --budget 300 --seed 0       so many of them
    python tests/faults/disk.py --every                     each change once with a kill and once with an error

A change is a file opened to be written, a write, fsync, rename, link, unlink, a folder made or removed. At one of them
the process is killed (before it, or half-way through it), or it is told that the disk is full (once, or from then on)
or broken. What is said must be a sentence. Given again, the command must end as it does undisturbed, to the same bits,
and leave nothing behind.
"""

import argparse
import ctypes
import mmap
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from trials import Tally, in_child, timeless, typed, warm_up  # noqa: E402

COUNT, KILL, TEAR, FULL, BROKEN, FULL_FROM_HERE = range(6)  # as in faults.c
FAULTS = {"killed before": KILL, "killed half-way": TEAR, "disk full": FULL, "disk broken": BROKEN,
          "disk full from there on": FULL_FROM_HERE}
KILLS, ERRORS = tuple(FAULTS)[:2], tuple(FAULTS)[2:]
METHODS = ("fedavg", "flag", "solo")  # one model; evidence and a sweep; memory at the clients
SMALL = ("--data", "digits", "--scenario", "rotation-4", "--clients", "4", "--epochs", "1", "--batch", "100",
         "--device", "cpu", "--workers", "1", "--fine-tune", "1")
TABLE = """
title = "A table"
over = "seeds"
protocol = {clients = 4, rounds = 1, eval_every = 1, fine_tune = 0, settings = {epochs = 1, batch = 100}}
words = {turned = {scenario = "rotation-4"}}
band = {accuracy = 100}
[table1]
title = "Table 1"
[table1.printed]
accuracy = '''
        digits turned
fedavg  50
'''
"""

Outcome = Callable[[Path], Any]


class Verb(NamedTuple):
    """A command that is disturbed, in a folder that `prepared` filled."""

    name: str
    prepared: Callable[[Path], None]
    command: Callable[[Path], tuple[object, ...]]  # as it is given first, and again
    outcome: Outcome


def build(folder: Path) -> Path:
    """The library with the faults."""
    library = folder / "faults.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, HERE / "faults.c", "-ldl"], check=True)
    return library


def verbs(method: str, ready: Path) -> list[Verb]:
    """All that write, for one method; `ready` holds a finished run of two rounds and a newcomer's rows."""
    from run_folders import outcome

    def nothing(place: Path) -> None:
        pass

    def finished(place: Path) -> None:
        shutil.copytree(ready / method, place / "run")

    def asked(place: Path) -> tuple[object, ...]:  # a person who sees that a run was begun goes on with it
        begun = (place / "run" / "recipe.toml").exists()
        new = ("run", method, *SMALL, "--rounds", 2)
        return (*(("run", "--resume", "--workers", 1) if begun else new), "--quiet", "--out", place / "run")

    def longer(place: Path) -> tuple[object, ...]:
        return "run", "--resume", "--workers", 1, "--quiet", "--out", place / "run", "--rounds", 3

    def admitted(place: Path) -> tuple[object, ...]:
        return "admit", place / "run", ready / "newcomer.npz", "--save", place / "out" / "model.safetensors"

    def reported(place: Path) -> tuple[object, ...]:
        return "report", place / "run", "--out", place / "out" / "page.html"

    def compared(place: Path) -> tuple[object, ...]:
        return "compare", "oracle", method, *SMALL, "--rounds", 1, "--quiet", "--out", place / "both"

    def reproduced(place: Path) -> tuple[object, ...]:
        return "reproduce", f"{ready / 'table.toml'}/table1", "--device", "cpu", "--jobs", 1, "--out", place / "table"

    def with_room(place: Path) -> None:
        finished(place)
        (place / "out").mkdir()

    def of_run(place: Path) -> Any:
        return outcome(place / "run")

    def of_both(place: Path) -> Any:
        runs = {name: outcome(place / "both" / name) for name in ("oracle-s0", f"{method}-s0")}
        return runs | {"names": sorted(path.name for path in (place / "both").iterdir())}

    def of_out(place: Path) -> Any:
        files = {path.name: path.read_bytes() for path in (place / "out").iterdir()}
        if "page.html" in files:
            files["page.html"] = timeless(files["page.html"].decode().replace(str(place), "")).encode()
        return files | {"run": outcome(place / "run")}

    def of_table(place: Path) -> Any:
        (run,) = (path for path in (place / "table").iterdir() if (path / "recipe.toml").exists())
        return outcome(run) | {"at": sorted(str(path.relative_to(place)) for path in place.rglob("*"))}

    known = [Verb("run", nothing, asked, of_run), Verb("prolong", finished, longer, of_run),
             Verb("compare", nothing, compared, of_both), Verb("admit", with_room, admitted, of_out),
             Verb("report", with_room, reported, of_out), Verb("reproduce", nothing, reproduced, of_table)]
    return [Verb(f"{verb.name} {method}", *verb[1:]) for verb in known
            if verb.name != "reproduce" or method == METHODS[0]]


class Disk:
    """The fault library, in this process and its forks."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL(None)  # it was loaded before everything else
        self.page = mmap.mmap(-1, mmap.PAGESIZE)  # shared with the children
        self.changes = ctypes.c_long.from_buffer(self.page)

    def faulty(self, fault: int, at: int, under: Path, work: Callable[[], None]) -> Callable[[], None]:
        """The same work on a disk that fails at change `at` below a folder."""
        def armed() -> None:
            self.changes.value = 0
            self.library.fault_arm(fault, ctypes.c_long(at), ctypes.byref(self.changes), f"{under}/".encode())
            work()

        return armed


def prepare(ready: Path) -> None:
    """Finished runs of all methods, a newcomer's rows and a table."""
    import numpy as np

    from umbel.data.sources import open_dataset

    digits = open_dataset("digits")
    np.savez(ready / "newcomer.npz", x_train=digits.x_test[:30, 0], y_train=digits.y_test[:30])
    (ready / "table.toml").write_text(TABLE)
    for method in METHODS:
        ended = in_child(typed("run", method, *SMALL, "--rounds", 2, "--quiet", "--out", ready / method))
        if ended.code != 0:
            raise SystemExit(ended.said)


def left_behind(place: Path) -> list[str]:
    """Files that nobody asked for."""
    return [str(path.relative_to(place)) for path in place.rglob("*")
            if path.name.endswith(".part") or ".part" in path.suffixes or path.parent.name == "tmp"]


def campaign(budget: int | None, seed: int, only: str, root: Path) -> Tally:
    """So many trials, drawn from all commands, faults and changes; None = a kill and an error at every change."""
    disk, ready, tally = Disk(), root / "ready", Tally()
    ready.mkdir()
    prepare(ready)
    known = [verb for method in METHODS for verb in verbs(method, ready) if only in verb.name]
    trials, whole = [], {}
    for k, verb in enumerate(known):
        place = root / f"whole-{k}"
        ended, whole[verb.name] = undisturbed(disk, verb, place)
        if ended.code != 0:
            raise SystemExit(f"{verb.name}, undisturbed: {ended.said}")
        trials += [(verb, fault, at) for at in range(disk.changes.value) for fault in FAULTS]
    if budget is None:
        chosen = [(verb, fault, at) for verb, fault, at in trials if fault in (KILLS[at % 2], ERRORS[at % 3])]
    else:
        chosen = random.Random(seed).sample(trials, min(budget, len(trials)))
    print(f"{len(trials)} places for faults in {len(known)} commands; {len(chosen)} are tried", flush=True)
    for number, (verb, fault, at) in enumerate(chosen):
        if number and number % 100 == 0:
            print(tally.told(), flush=True)
        place = root / f"trial-{number}"
        name = f"{verb.name}, {fault}, at change {at}"
        tally.add(name, *trial(disk, verb, FAULTS[fault], at, place, whole[verb.name]))
        shutil.rmtree(place)
    return tally


def sandbox(verb: Verb, place: Path) -> None:
    """A folder for one trial, with a folder for temporary files of its own."""
    (place / "tmp").mkdir(parents=True)
    verb.prepared(place)
    os.environ["TMPDIR"] = str(place / "tmp")
    tempfile.tempdir = None


def undisturbed(disk: Disk, verb: Verb, place: Path) -> tuple[Any, Any]:
    """What the command leaves, and how it ended; the library has counted its changes then."""
    sandbox(verb, place)
    ended = in_child(disk.faulty(COUNT, 0, place, typed(*verb.command(place))))
    return ended, None if ended.code != 0 else verb.outcome(place)


def trial(disk: Disk, verb: Verb, fault: int, at: int, place: Path, whole: Any) -> tuple[str, str]:
    """One fault, then the command again; the verdict and what was said."""
    sandbox(verb, place)
    first = in_child(disk.faulty(fault, at, place, typed(*verb.command(place))))
    if first.verdict.isupper():
        return first.verdict, first.said
    again = in_child(typed(*verb.command(place)))
    if again.code != 0:  # None where its time was over
        return "CANNOT GO ON", f"first: {first.said}\nagain: {again.said}"
    if other := differing(verb.outcome(place), whole):
        return "ENDS OTHERWISE", f"first: {first.said}\n{other}"
    if left := left_behind(place):
        return "LEAVES FILES", ", ".join(left)
    return first.verdict, ""


def differing(one: Any, other: Any, at: str = "") -> str:
    """Where two outcomes differ; empty where they are the same."""
    if isinstance(one, dict) and isinstance(other, dict):
        names = [*one, *(name for name in other if name not in one)]
        return "; ".join(told for name in names if (told := differing(one.get(name), other.get(name), f"{at}/{name}")))
    if isinstance(one, bytes) and isinstance(other, bytes) and one != other:
        first = next((k for k, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), 0)
        one, other = one[max(0, first - 80) : first + 80], other[max(0, first - 80) : first + 80]
    return "" if one == other else f"{at}: {one!r}, undisturbed {other!r}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=int, default=300, help="How many trials.")
    parser.add_argument("--every", action="store_true", help="A kill and an error at every change instead.")
    parser.add_argument("--seed", type=int, default=0, help="Which of them.")
    parser.add_argument("--only", default="", help="Only commands with these words, as in 'report solo'.")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        root = Path(name).resolve()
        if "UMBEL_FAULTS" not in os.environ:  # once more, with the library in front of all others
            library = build(root)
            ended = subprocess.run([sys.executable, *sys.argv], env={
                **os.environ, "LD_PRELOAD": str(library), "UMBEL_FAULTS": "1", "OMP_NUM_THREADS": "1",
                "TORCHINDUCTOR_CACHE_DIR": str(root / "torch")})
            raise SystemExit(ended.returncode)
        warm_up()
        tally = campaign(None if given.every else given.budget, given.seed, given.only, root)
        print(tally.told())
        raise SystemExit(bool(tally.wrong))


if __name__ == "__main__":
    main()
