"""Links and pipes where umbel writes and reads: `python tests/faults/links.py` plants each, and says what came of it.

For every file that a command writes or reads by a name of its own, one of four things stands there before it. The
command must end soon with a sentence or with its work done, write nothing outside, show nothing of what lies there.
"""

import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from forks import FAILED, forked

SECRET = "do-not-show-7f3a"  # lies outside, and may be seen nowhere else
SECONDS = 60.0  # after which a command is taken to hang
KINDS = ("a link to a file", "a link to nothing", "a pipe", "a link to a folder")
SMALL = ("--clients", "4", "--epochs", "1", "--batch", "200", "--model", "mlp", "--device", "cpu", "--workers", "1",
         "--rounds", "1", "--quiet")
RUN = ("run", "solo", *SMALL, "--out")
RESUME = ("run", "--resume", "--quiet", "--out", "stopped")
PROLONG = ("run", "--resume", "--quiet", "--out", "done", "--rounds", "2")
COMPARE = ("compare", "solo", *SMALL, "--out", "both")
ADMIT = ("admit", "done", "client.npz")
REPRODUCE = ("reproduce", "flag/table1", "--data-dir", ".", "--out", "table")


class Case(NamedTuple):
    """One file of one command, and the kinds of thing that are planted there; a person's own links are followed."""

    command: tuple[str, ...]
    file: str
    kinds: tuple[str, ...] = KINDS


class Outcome(NamedTuple):
    """What came of a case; nothing is wrong where `wrong` is empty."""

    case: Case
    kind: str
    code: int | None
    said: str
    wrong: str


CASES = [
    Case((*RUN, "new"), "new"),
    Case(("run", "mine.toml", *SMALL, "--out", "new"), "mine.toml", KINDS[1:]),
    Case((*RUN, "new", "--partition", "mine.npz"), "mine.npz"),
    Case((*RUN, "new", "--data", "mnist", "--data-dir", "."), "mnist.npz"),
    *(Case(RESUME, f"stopped/{name}") for name in (
        "recipe.toml", "checkpoint.json", "rounds.jsonl", "partition.npz", "model.json", "env.json",
        "state--1.safetensors", "result.json", "clusters.json", "state.safetensors")),
    *(Case(PROLONG, f"done/{name}") for name in (
        "recipe.toml", "checkpoint.json", "rounds.jsonl", "state.safetensors", "result.json", "clusters.json")),
    *(Case(ADMIT, f"done/{name}") for name in (
        "recipe.toml", "checkpoint.json", "state.safetensors", "model.json", "partition.npz", "result.json")),
    Case(ADMIT, "client.npz", KINDS[1:]),
    Case((*ADMIT, "--save", "model.safetensors"), "model.safetensors"),
    *(Case(("report", "done"), f"done/{name}") for name in (
        "report.html", "recipe.toml", "result.json", "clusters.json", "rounds.jsonl", "env.json", "memory.safetensors",
        "evidence.safetensors")),
    Case(("report", "done", "--out", "page.html"), "page.html"),
    Case(("report", "done", "--figures", "figures"), "figures"),
    Case(("report", "done", "--figures", "figures"), "figures/clients.png"),
    Case(("report", "both"), "both/compare.json"),
    Case(("report", "both"), "both/solo-s0"),
    Case(COMPARE, "both"),
    *(Case(COMPARE, f"both/{name}") for name in ("compare.json", "compare.csv", "solo-s0", "solo-s0/result.json")),
    *(Case(REPRODUCE, f"table/{name}") for name in ("table.json", "table.csv", "table.md")),
    Case(REPRODUCE, "table"),
]


def command(*words: str) -> None:
    """What `umbel` does with these words; it ends the process."""
    from umbel import cli

    os.environ.pop("UMBEL_DATA", None)
    sys.argv = ["umbel", *words]
    cli.main()


def prepare(place: Path) -> None:
    """What the commands find: a finished run, one that was stopped, a comparison of one run, a newcomer."""
    for made in (lambda: command(*RUN, "done"), _stopped, lambda: command(*COMPARE)):
        ended = forked(made, place, SECONDS)
        if ended.code != 0:
            raise RuntimeError(ended.said)
    rng = np.random.default_rng(0)
    np.savez(place / "client.npz", x_train=rng.integers(0, 255, (20, 1, 8, 8), dtype=np.uint8),
             y_train=np.arange(20) % 10)
    (place / "mine.toml").write_bytes((place / "done" / "recipe.toml").read_bytes())
    (place / "mine.npz").write_bytes((place / "done" / "partition.npz").read_bytes())


def _stopped() -> None:
    from umbel.runs.experiment import Experiment
    from umbel.runs.session import Session

    session = Session.start(Experiment("solo", clients=4, rounds=1, model="mlp", device="cpu",
                                       settings={"epochs": 1, "batch": 200}), Path("stopped"))
    next(session.rounds())
    session.close()


def plant(kind: str, file: Path, outside: Path) -> None:
    """One of the four at a file's place; what stood there lies outside then, with a secret where it may have one."""
    outside.mkdir()
    (outside / "folder").mkdir()
    (outside / "folder" / "secret").write_text(SECRET)
    (outside / "file").write_text(SECRET)
    if file.is_dir():
        shutil.move(file, outside / "folder" / "was")
    elif file.exists():
        comment = f"# {SECRET}\n".encode() if file.suffix == ".toml" else b""
        (outside / "file").write_bytes(file.read_bytes() + comment)
        file.unlink()
    file.parent.mkdir(exist_ok=True)
    at = {"a link to a file": "file", "a link to nothing": "gone", "a link to a folder": "folder"}.get(kind)
    if at is None:
        os.mkfifo(file)
    else:
        was = outside / "folder" / "was"
        file.symlink_to(was if at == "folder" and was.is_dir() else outside / at)


def snapshot(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Everything in a folder, links unfollowed: which file it is, when it was changed, and what is in it."""
    found = {}
    for path in sorted(folder.rglob("*")):
        about = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(about.st_mode) else b""
        found[str(path)] = about.st_ino, about.st_mtime_ns, content
    return found


def play(case: Case, kind: str, prepared: Path, place: Path) -> Outcome:
    """Plant, give the command, and look."""
    shutil.copytree(prepared, place / "inside")
    plant(kind, place / "inside" / case.file, place / "outside")
    before = snapshot(place / "outside")
    ended = forked(lambda: command(*case.command), place / "inside", SECONDS)
    after = snapshot(place / "inside")
    wrong = ""
    if snapshot(place / "outside") != before:
        wrong = "it wrote outside"
    elif SECRET in ended.said or any(SECRET.encode() in content for _, _, content in after.values()):
        wrong = "it showed what lies outside"
    elif ended.code is None:
        wrong = "it hangs"
    elif ended.code in (FAILED, 1) or ended.code < 0 or "Traceback" in ended.said:
        wrong = "it ends in no sentence"
    elif ended.code and not ended.said.strip():
        wrong = "it says nothing"
    return Outcome(case, kind, ended.code, ended.said.strip(), wrong)


def campaign(place: Path) -> Iterator[Outcome]:
    """Every case with every kind."""
    (place / "prepared").mkdir()
    prepare(place / "prepared")
    for k, (case, kind) in enumerate((each, kind) for each in CASES for kind in each.kinds):
        (place / str(k)).mkdir()
        yield play(case, kind, place / "prepared", place / str(k))
        shutil.rmtree(place / str(k))


def main() -> int:
    """Play all, and count."""
    from umbel.pages import write  # noqa: F401 (once, for all the children)
    from umbel.runs import newcomer, session  # noqa: F401

    outcomes = []
    with tempfile.TemporaryDirectory() as place:
        for outcome in campaign(Path(place)):
            outcomes.append(outcome)
            if outcome.wrong or "-v" in sys.argv:
                print(f"{' '.join(outcome.case.command[:2])}: {outcome.kind} at {outcome.case.file}: "
                      f"{outcome.wrong or 'good'} ({outcome.code}): {outcome.said[-300:]}")
    failed = sum(bool(outcome.wrong) for outcome in outcomes)
    refused = sum(not outcome.wrong and bool(outcome.code) for outcome in outcomes)
    print(f"tried {len(outcomes)}, refused {refused}, harmless {len(outcomes) - refused - failed}, failed {failed}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
