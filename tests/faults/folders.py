"""Run folders that something damaged: seeded mutations of one file each, then every command that reads the folder.

    python tests/faults/folders.py --count 2000 --seed 0

A folder whose run was stopped is gone on with, and must end to the same bits or be refused; of one that has ended the
report, the newcomer's cluster and what is loaded must be the same, or be refused. Anything else is wrong, a traceback
and a hang included.
"""

import argparse
import os
import random
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from markupsafe import escape  # noqa: E402
from trials import NO_NUMBER, Ended, Tally, in_child, timeless, typed, warm_up  # noqa: E402

SMALL = ("--data", "digits", "--scenario", "rotation-4", "--clients", "4", "--epochs", "1", "--batch", "100",
         "--rounds", "3", "--device", "cpu", "--workers", "1", "--fine-tune", "1", "--quiet")
METHODS = ("flag", "solo")  # evidence and a sweep; memory at the clients


def flip(content: bytes, dice: random.Random) -> bytes:
    """Other bits in a few bytes."""
    changed = bytearray(content)
    for _ in range(dice.choice((1, 1, 1, 4, 32))):
        changed[dice.randrange(len(changed))] ^= 1 << dice.randrange(8)
    return bytes(changed)


def digit(content: bytes, dice: random.Random) -> bytes:
    """Another digit, where there is one: the change that is hardest to see."""
    places = [k for k, byte in enumerate(content) if 48 <= byte <= 57]
    if not places:
        return flip(content, dice)
    at = dice.choice(places)
    return content[:at] + bytes([48 + (content[at] - 48 + dice.randrange(1, 10)) % 10]) + content[at + 1 :]


def cut(content: bytes, dice: random.Random) -> bytes:
    """Its end is missing."""
    return content[: dice.randrange(len(content))]


def without(content: bytes, dice: random.Random) -> bytes:
    """A piece is missing."""
    start = dice.randrange(len(content))
    return content[:start] + content[start + dice.choice((1, 8, 512)) :]


def more(content: bytes, dice: random.Random) -> bytes:
    """A piece of it, or of nothing sensible, stands in it once more."""
    at, start = dice.randrange(len(content) + 1), dice.randrange(len(content))
    piece = dice.choice((content[start : start + dice.choice((1, 8, 512))], dice.randbytes(8), b"\0" * 512))
    return content[:at] + piece + content[at:]


def zeros(content: bytes, dice: random.Random) -> bytes:
    """A block was never written."""
    start = dice.randrange(len(content)) // 512 * 512
    return content[:start] + b"\0" * len(content[start : start + 512]) + content[start + 512 :]


def line(content: bytes, dice: random.Random) -> bytes:
    """A line is missing, doubled, or stands elsewhere."""
    lines = content.splitlines(keepends=True)
    one = lines.pop(dice.randrange(len(lines)))
    for _ in range(dice.randrange(3)):
        lines.insert(dice.randrange(len(lines) + 1), one)
    return b"".join(lines)


def empty(content: bytes, dice: random.Random) -> bytes:
    """Nothing."""
    return b""


DAMAGES: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    flip, flip, digit, digit, digit, cut, without, more, zeros, line, empty)


def damaged(folder: Path, others: list[Path], dice: random.Random) -> str:
    """Damage one file of a folder, or put another's in its place; what was done, in words."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.stat().st_size)
    small = [path for path in files if path.suffix != ".safetensors"]  # most of what can lie lies in these
    target = dice.choice(small if dice.random() < 0.7 else files)
    fate = dice.random()
    if fate < 0.06:
        target.unlink()
        return f"{target.name} removed"
    if fate < 0.16:
        other = dice.choice(others)
        donors = sorted(path for path in other.iterdir() if path.suffix == target.suffix and path.is_file())
        if donors:
            donor = dice.choice(donors)
            target.write_bytes(donor.read_bytes())
            return f"{target.name} is {other.name}'s {donor.name}"
    damage = dice.choice(DAMAGES)
    before = target.read_bytes()
    after = damage(before, dice)
    target.write_bytes(after)
    return f"{target.name}: {damage.__name__} ({len(before)} -> {len(after)} bytes)" if after != before else ""


def stopped(method: str, folder: Path, last: int, *more: str) -> None:
    """Leave a run that was stopped behind round `last`."""
    def work() -> None:
        from umbel.cli import sessions

        def play(session: Any, *_: Any) -> None:
            for done in session.rounds():
                if done.index == last:
                    session.close()
                    raise SystemExit(0)

        sessions._play = play
        typed("run", method, *SMALL, *more, "--out", folder)()

    must(in_child(work))


def must(ended: Ended) -> None:
    """Stop the campaign where what it stands on fails."""
    if ended.code != 0:
        raise SystemExit(ended.said)


def ends(folder: Path) -> dict[str, Any]:
    """What a run left; its recipe by what it says."""
    from run_folders import outcome

    end = outcome(folder)
    end["files"]["recipe.toml"] = tomllib.loads((folder / "recipe.toml").read_text())
    return end


class Campaign:
    """Whole folders, and what they lead to."""

    def __init__(self, root: Path, seed: int) -> None:
        import numpy as np

        from umbel.data.sources import open_dataset

        self.root, self.dice, self.tally = root, random.Random(seed), Tally()
        digits = open_dataset("digits")
        np.savez(root / "newcomer.npz", x_train=digits.x_test[:30, 0], y_train=digits.y_test[:30])
        for method in METHODS:
            stopped(method, root / f"{method}-stopped", 1)
            stopped(method, root / f"{method}-other", 1, "--seed", "1")
            must(in_child(typed("run", method, *SMALL, "--out", root / f"{method}-whole")))
        self.whole = {method: ends(root / f"{method}-whole") for method in METHODS}
        self.shown = {}
        for method in METHODS:
            shutil.copytree(root / f"{method}-whole", root / "trial")
            self.shown[method] = self.read()
            shutil.rmtree(root / "trial")

    def trial(self, number: int) -> None:
        """One mutation of one folder, and the commands that read it."""
        method, kind = self.dice.choice(METHODS), self.dice.choice(("stopped", "whole"))
        place = self.root / "trial"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(self.root / f"{method}-{kind}", place)
        others = [path for path in self.root.iterdir() if path.name.endswith(("-stopped", "-other", "-whole"))]
        what = damaged(place, others, self.dice)
        name = f"{number}: {method}, {kind}, {what}"
        if not what:
            return self.tally.add(name, "unchanged")
        if kind == "whole":
            for command, (verdict, said, result) in self.read().items():
                usual = self.shown[method][command][2]
                self.tally.add(f"{name}, {command}", self.judged(verdict, result == usual), f"{said}\n{result!r:.500}")
        else:
            ended = in_child(typed("run", "--resume", "--workers", 1, "--quiet", "--out", place))
            same = False
            with suppress(OSError, ValueError, KeyError):
                same = ended.code == 0 and ends(place) == self.whole[method]
            self.tally.add(f"{name}, resume", self.judged(ended.verdict, same), ended.said)

    def judged(self, verdict: str, same: bool) -> str:
        """What went through must have given the usual."""
        return "SILENTLY WRONG" if verdict == "harmless" and not same else verdict

    def read(self) -> dict[str, tuple[str, str, Any]]:
        """Every command that reads a finished folder: verdict, what was said, what came of it."""
        place, out = self.root / "trial", self.root / "read"
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        results: dict[str, tuple[str, str, Any]] = {}
        ended = in_child(typed("report", place, "--out", out / "page.html"))
        page = timeless((out / "page.html").read_text()) if (out / "page.html").exists() else ""
        body = page[page.rfind("<body") :]
        if ended.code == 0:  # another way to write the same recipe is none
            page = page.replace(str(escape((place / "recipe.toml").read_text())), "")
        verdict = "NO NUMBER" if ended.code == 0 and NO_NUMBER.search(without_scripts(body)) else ended.verdict
        results["report"] = verdict, ended.said, page
        ended = in_child(typed("admit", place, self.root / "newcomer.npz", "--save", out / "m.safetensors"))
        model = (out / "m.safetensors").read_bytes() if (out / "m.safetensors").exists() else b""
        results["admit"] = ended.verdict, ended.said, (ended.said, model)

        def load() -> None:
            import umbel
            from umbel import tree

            result = umbel.load(place)
            print(result.info, result.clusters, result.records, result.labels.tolist(), result.memory_rounds)
            print({name: leaf.double().sum().item() for name, leaf in tree.named(result.memory).items()})
            print({name: leaf.double().sum().item() for name, leaf in tree.named(result.models).items()})

        ended = in_child(load)
        verdict = "refused" if "umbel.errors.UmbelError" in ended.said else ended.verdict
        results["load"] = verdict, ended.said, ended.said
        return results


def without_scripts(page: str) -> str:
    """What a reader sees of a page, roughly."""
    parts = page.split("<script")
    return parts[0] + "".join(part.partition("</script>")[2] for part in parts[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2000, help="How many mutations.")
    parser.add_argument("--seed", type=int, default=0, help="Which.")
    given = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    warm_up()
    with tempfile.TemporaryDirectory(prefix="folders-") as name:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = name
        campaign = Campaign(Path(name).resolve(), given.seed)
        for number in range(given.count):
            campaign.trial(number)
            if number % 200 == 199:
                print(f"{number + 1} mutations, {campaign.tally.told()}", flush=True)
        print(f"{given.count} mutations, each read by one command or three: {campaign.tally.told()}")
        raise SystemExit(bool(campaign.tally.wrong))


if __name__ == "__main__":
    main()
