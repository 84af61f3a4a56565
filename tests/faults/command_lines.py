"""Command lines that nobody would type on purpose: each must end in a sentence, or do what it says.

    python tests/faults/command_lines.py --count 500 --seed 0
"""

import argparse
import os
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from trials import Ended, Tally, in_child, typed, warm_up  # noqa: E402

NUMBERS = ("-1", "0", "1", "2", "3", "7", "0.5", "1.0", "1e3", "-0.0", "nan", "inf", "-inf", "1e400", "1e-400", "0x10",
           "1_0", "٣", "9" * 23, "-" + "9" * 23, "18446744073709551616", "9223372036854775808", "1" * 5000, "1,5", "")
TEXTS = ("", " ", "-", "--", "=", "a=b", "a=b=c", "[/x]", "[red]", "{}", "%s", "\x1b[31m", "é", "\udcff", "\n",
         "a" * 5000, "../..", "none", "true", "None", "fedavg", "digits", "iid", "rotation-4", "rotaton-4",
         "rotation-4+", "+", ":", "rotation-4+rotation-4", "label-skew:share=2", "label-skew:share=",
         "flag:labels=nan", "dirichlet:alpha=-1", "dirichlet:alpha=1e-300", "dirichlet:alpha=1e300", "1@1", "1@",
         "@1", "9@1", "1@0,1@0", "2@1:rotate:90", "2@1:rotate:x", "2@1:swap", "-1@1", "1@99999999999999999999",
         "topk:0.1", "topk:2", "topk", "quantise:7", "clip:0", "clip:1+clip:1", "lr=0.1", "lr=nan", "cut=gap",
         "cut=x", "beta=2", "clusters=0", "clusters=10000000", "k=3", "momentum=-1", "rows=fit", "rank=0",
         "rank=100000000", "norms=private", "server=fedadam")
PLACES = ("nowhere", ".", "/", "/dev/null", "/dev/zero", "pipe", "link", "full", "full/note", "text.toml", "odd.toml",
          "text.npz", "run", "run/recipe.toml", "run/partition.npz", "run/result.json", "client.npz", "é/x",
          "x" * 300, "out/new")
FEW = ("--rounds", "1", "--epochs", "1", "--clients", "4", "--batch", "100", "--device", "cpu", "--workers", "1",
       "--quiet")


def parts(command: Any) -> tuple[list[Any], list[Any]]:
    """A command's options and arguments, as click has them."""
    options = [each for each in command.params if each.param_type_name == "option"]
    return options, [each for each in command.params if each.param_type_name == "argument"]


def value(option: Any, dice: random.Random) -> str:
    """Something for an option: of its kind more often than not."""
    kind = option.type.name
    usual = {"integer": NUMBERS, "integer range": NUMBERS, "float": NUMBERS, "path": PLACES}.get(kind, TEXTS)
    return dice.choice(usual if dice.random() < 0.7 else dice.choice((NUMBERS, TEXTS, PLACES)))


def line(commands: dict[str, Any], methods: list[str], dice: random.Random) -> list[str]:
    """A command line."""
    name = dice.choice(["run"] * 5 + ["compare", "admit", "report", "reproduce", *commands])
    command = commands[name]
    options, arguments = parts(command)
    if hasattr(command, "commands"):  # `list` has commands of its own
        return [name, dice.choice([*command.commands, "nothing", ""]), *dice.choices(TEXTS, k=dice.randrange(2))]
    words = [name]
    for argument in arguments:
        usual: tuple[str, ...] = PLACES if argument.type.name == "path" else (*methods, *PLACES, *TEXTS)
        if name in ("run", "compare") and dice.random() < 0.7:
            usual = tuple(methods)
        if name == "reproduce":
            usual = ("text.toml/table1", "odd.toml/table1", "nowhere/table1", "flag/tabel2", "comparative", "/", *TEXTS)
        words += dice.choices(usual, k=dice.choice((0, 1, 1, 1, 1, 2)))
    if name in ("run", "compare"):
        words += FEW
    for _ in range(dice.choice((0, 1, 1, 1, 2, 3)) if options else 0):
        option = dice.choice(options)
        words.append(dice.choice(option.opts) if dice.random() < 0.97 else "--nothing")
        if not option.is_flag and dice.random() < 0.97:
            words.append(value(option, dice))
    return words


def judged(ended: Ended) -> str:
    """A verdict; usage errors are click's, in a frame of their own."""
    return ended.verdict if ended.code != 2 or "Traceback" in ended.said else "refused"


def prepare(place: Path) -> None:
    """Files of all kinds to trip over."""
    import numpy as np

    os.chdir(place)
    os.mkfifo("pipe")
    Path("full").mkdir()
    Path("full/note").write_text("mine")
    Path("text.toml").write_text("rounds = 3\n[table1]\ntitle = 3\n")
    Path("odd.toml").write_bytes(b"a = [" * 2000)
    Path("text.npz").write_text("no archive")
    Path("link").symlink_to("full/note")
    np.savez("client.npz", x_train=np.zeros((3, 8, 8), np.uint8), y_train=np.arange(3))
    ended = in_child(typed("run", "fedavg", *FEW, "--out", "run"))
    if ended.code != 0:
        raise SystemExit(ended.said)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=500, help="How many command lines.")
    parser.add_argument("--seed", type=int, default=0, help="Which.")
    given = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "COLUMNS": "100"}
    warm_up()
    import typer

    from umbel.algorithms import ALGORITHMS
    from umbel.cli import app

    dice, tally = random.Random(given.seed), Tally()
    commands = dict(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    with tempfile.TemporaryDirectory(prefix="lines-") as name:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{name}/torch"
        prepare(Path(name).resolve())
        for _ in range(given.count):
            words = line(commands, list(ALGORITHMS), dice)
            ended = in_child(typed(*words))
            tally.add(" ".join(word[:60] for word in words), judged(ended), ended.said)
    print(f"command lines, {tally.told()}")
    raise SystemExit(bool(tally.wrong))


if __name__ == "__main__":
    main()
