"""The command line: what a person types, sees, and finds in the folder afterwards."""

import csv
import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import typer
from terminal import SMALL, Umbel, snapshot, start, stop_after

from umbel import cli
from umbel.algorithms import ALGORITHMS
from umbel.data.scenarios import SCENARIOS
from umbel.data.sources import DATASETS
from umbel.nets.networks import MODELS

LONG = ("run", "fedavg", "--clients", "4", "--rounds", "12", "--epochs", "1", "--batch", "50", "--fraction", "0.5",
        "--device", "cpu")


def digest(folder: Path) -> str:
    """Of the final state."""
    return sha256((folder / "state.safetensors").read_bytes()).hexdigest()


def plain(text: str) -> str:
    """Without colours and cursor moves."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)


# Bad input


WRONG: dict[str, tuple[str, str]] = {
    "method": ("run fedagv", "There is no method 'fedagv'. Did you mean 'fedavg'?"),
    "nothing to run": ("run", "Say which method to run, as in `umbel run fedavg`, or give --resume and --out."),
    "data": ("run fedavg --data digit", "There is no data set 'digit'. Did you mean 'digits'?"),
    "scenario": ("run fedavg --scenario rotate-4", "Did you mean 'rotation-4'?"),
    "model": ("run fedavg --model lenet", "There is no model 'lenet'. Did you mean 'lenet5'?"),
    "engine": ("run fedavg --engine lop", "There is no engine 'lop'. Did you mean 'loop'?"),
    "device": ("run fedavg --device gpu", "must be 'auto' or 'cpu' or 'cuda'. Got 'gpu' instead."),
    "setting": ("run solo --set rl=1", "There is no setting of solo named 'rl'. Known: aggregate, batch, decay_every,"),
    "setting without value": ("run fedprox --set mu", "A setting is written NAME=VALUE, as in --set mu=0.1. Got 'mu'"),
    "fraction": ("run fedavg --fraction 2", "must be greater than 0 and at most 1. Got 2.0 instead."),
    "rounds": ("run fedavg --rounds 0",
               "The 'rounds' of the run must be at least 1 and at most 2147483647. Got 0 instead."),
    "clients": ("run fedavg --clients 0",
                "The 'clients' of the run must be at least 1 and at most 100000. Got 0 instead."),
    "seed": ("run fedavg --seed -1", "must be at least 0 and less than 4294967296. Got -1 instead."),
    "lr": ("run fedavg --lr -1",
           "The 'lr' of local training must be greater than 0 and at most 1e+30. Got -1.0 instead."),
    "momentum": ("run fedavg --set momentum=1", "at least 0 and less than 1. Got 1.0 instead."),
    "batch": ("run fedavg --batch -1",
              "The 'batch' of local training must be at least 0 and at most 100000. Got -1 instead."),
    "epochs too large": ("run fedavg --epochs 18446744073709551616",
                         "must be at least 1 and at most 10000. Got 18446744073709551616 instead."),
    "workers too large": ("run fedavg --workers 99999999", "The 'workers' of a simulation must be at least 1 and at"),
    "seeds too large": ("compare fedavg --seeds 99999999999999999999999",
                        "The 'seeds' of a comparison must be at least 1 and at most 1000. Got 99999999999999999999999"),
    "seeds of a table": ("reproduce comparative/table2 --seeds 99999999999999999999999",
                         "The 'seeds' of a table must be at least 1 and at most 1000. Got 99999999999999999999999"),
    "jobs of a table": ("reproduce comparative/table2 --jobs 1001",
                        "The 'jobs' of a table must be at least 1 and at most 1000. Got 1001 instead."),
    "epochs of a newcomer": ("admit nowhere nothing.npz --fine-tune 10001",
                             "The 'epochs' of a newcomer must be at least 0 and at most 10000. Got 10001 instead."),
    "join at the end": ("run fedavg --join 20@50 --rounds 20", "The round of a join must be less than 20, the rounds"),
    "leave at the end": ("run fedavg --leave 1@20 --rounds 20", "The round of a leave must be less than 20, "),
    "change at the end": ("run cflgt --change 1@5:rotate:90 --rounds 2 --set pretrain=3",
                          "The round of a change must be less than 5, the rounds of this run, which count from 0, "),
    "labels beyond all": ("run fedavg --change 1@1:swap:1-99999999999999999999", "A shift reads like 'swap:"),
    "join": ("run fedavg --join x", "A join is written COUNT@ROUND, both at least 1, as in 20@50. Got 'x' instead."),
    "join of all": ("run fedavg --clients 4 --join 4@1", "At least one client must be there in every round."),
    "leave of all": ("run fedavg --clients 4 --leave 4@1", "nobody is there in round 1."),
    "more clients than rows": ("run fedavg --clients 5000", "at most 1438 clients on this data set. Got 5000 instead."),
    "data beside mix-4": ("run fedavg --scenario mix-4 --data digits", "brings its own data sets."),
    "no such set here": ("run fedavg --data kmnist", "The data set 'kmnist' was not found: put its files in a folder"),
    "no data folder": ("run fedavg --data mnist --data-dir nowhere", "must be a folder that exists. Got 'nowhere'"),
    "cut data": ("run fedavg --data mnist --data-dir data", "mnist.npz"),
    "no recipe": ("run none.toml", "The file none.toml cannot be read: No such file or directory."),
    "recipe not TOML": ("run bad.toml", "The recipe bad.toml must be TOML. It is not: "),
    "recipe's key": ("run key.toml", "There is no option in key.toml named 'round'. Did you mean 'rounds'?"),
    "recipe's type": ("run type.toml", "must be a whole number. Got \"ten\" instead."),
    "no partition": ("run fedavg --partition none.npz", "There is no partition file 'none.npz'."),
    "cut partition": ("run fedavg --partition data/mnist.npz", "'data/mnist.npz' must be a whole and readable npz"),
    "full folder": ("run fedavg --out full", "The run folder full must be new or empty, and it is not: choose another"),
    "out is a file": ("run fedavg --out full/note", "The folder full/note cannot be made: File exists."),
    "out in a file": ("run fedavg --out full/note/x", "The folder full/note/x cannot be made: Not a directory."),
    "nothing to resume": ("run --resume --out full", "There is no run to resume in full: a run folder"),
    "nowhere to resume": ("run --resume --out none", "There is no run to resume in none"),
    "no unfinished run": ("run fedavg --resume", "There is no unfinished run named fedavg-digits-iid-s0 under runs/"),
    "options beside resume": ("run --resume --out full --rounds 3 --clients 3",
                              "the folder's own recipe holds, all but --rounds. Leave the other options out."),
    "list": ("list method", "There is no list of 'method'. Did you mean 'methods'?"),
    "compared method": ("compare fedavg fedprx", "There is no method 'fedprx'. Did you mean 'fedprox'?"),
    "compared twice": ("compare solo solo", "Each method is compared once. Got 'solo' 2 times."),
    "compared setting": ("compare fedavg solo --set fedavg.mu=1", "There is no setting of these methods named"),
    "compared without headline": ("compare fedavg fedavg-ft --fine-tune 0", "'fine_tune' of fedavg-ft, judged by it"),
}


@pytest.fixture
def corner(tmp_path: Path) -> Path:
    """A folder with things that cannot be used."""
    for name in ("full", "data"):
        (tmp_path / name).mkdir()
    (tmp_path / "full" / "note").write_text("mine")
    np.savez(tmp_path / "whole.npz", x_train=np.zeros((50, 28, 28), np.uint8))
    (tmp_path / "data" / "mnist.npz").write_bytes((tmp_path / "whole.npz").read_bytes()[:-300])
    (tmp_path / "bad.toml").write_text("rounds = ")
    (tmp_path / "key.toml").write_text("round = 3")
    (tmp_path / "type.toml").write_text('rounds = "ten"')
    return tmp_path


@pytest.mark.parametrize(("words", "sentence"), WRONG.values(), ids=WRONG.keys())
def test_bad_input_is_one_sentence_and_changes_nothing(words: str, sentence: str, umbel: Umbel, corner: Path) -> None:
    """One line on stderr that names the thing, the rule and the value; exit code 2; every file as it was."""
    before = snapshot(corner)
    code, out, err = umbel(*words.split())
    assert (code, out) == (2, "")
    assert err.startswith("Error: ")
    assert err.count("\n") == 1
    assert sentence in err
    assert snapshot(corner) == before


@pytest.mark.skipif("__import__('torch').cuda.is_available()")
def test_a_missing_gpu_is_told(umbel: Umbel, tmp_path: Path) -> None:
    """--device cuda without a GPU says what to take instead."""
    said = umbel("run", "fedavg", "--device", "cuda")
    assert said.code == 2
    assert said.err == ("Error: The device 'cuda' needs a GPU that torch can use, and there is none:"
                        " take --device cpu.\n")
    assert not list(tmp_path.iterdir())


def test_brackets_in_a_sentence_are_not_markup(umbel: Umbel) -> None:
    """A value and a folder called [red] are printed as they are; so is umbel[hub] in an advice."""
    assert "Got '[red]' instead." in umbel("run", "fedavg", "--device", "[red]").err
    assert umbel("run", "fedavg", *SMALL, "--quiet", "--out", "[red]").out.endswith("Run folder: [red]\n")


@pytest.mark.parametrize(("words", "told"), [
    ("run fedavg --roundz 3", "No such option"), ("run fedavg --rounds ten", "'ten' is not a valid integer"),
    ("compare", "Missing argument"), ("compare fedavg --seeds 0", "0 is not in the range"), ("go", "No such command"),
])
def test_a_usage_error_is_shown_with_the_usage(words: str, told: str, umbel: Umbel) -> None:
    """An option that does not exist, or no number where one belongs: usage, error, exit code 2."""
    code, _, err = umbel(*words.split())
    assert code == 2
    assert "Usage: umbel" in err
    assert told in err


def test_a_run_folder_that_cannot_be_gone_on_with(umbel: Umbel, tmp_path: Path) -> None:
    """In use, from another recipe, not empty, or with a partition of other data: refused, and left as it is."""
    assert umbel("run", "fedavg", *SMALL, "--out", "a").code == 0
    assert umbel("run", "fedavg", *SMALL, "--out", "b").code == 0
    (tmp_path / "b" / "result.json").unlink()
    np.savez(tmp_path / "usps.npz", x_train=np.zeros((50, 16, 16), np.uint8), y_train=np.arange(50) % 10,
             x_test=np.zeros((20, 16, 16), np.uint8), y_test=np.arange(20) % 10)
    before = snapshot(tmp_path)
    handle = os.open(tmp_path / "b", os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    for words, sentence in (
        ("run fedavg --out a", "must be new or empty, and it is not"),
        ("run fedavg --out a --resume", "from another recipe: its 'clients' is 4, asked for is 20."),
        ("run solo --out b --resume", "is in use by another process: wait for it, or use --out."),
        ("run --resume --out b", "is in use by another process: wait for it, or use --out."),
        ("run fedavg --data usps --data-dir . --partition a/partition.npz", "fits only the rows it was drawn on"),
        ("compare fedavg solo --out a", "It is a run itself: choose another --out."),
    ):
        code, out, err = umbel(*words.split())
        assert (code, out, err.count("\n")) == (2, "", 1), err
        assert sentence in err
    os.close(handle)
    assert snapshot(tmp_path) == before


def test_answers_that_are_not_finite_end_the_run_in_a_sentence(umbel: Umbel) -> None:
    """Three lost rounds in a row name the usual cause."""
    code, _, err = umbel("run", "fedavg", *SMALL, "--rounds", 5, "--lr", 1e30)
    assert code == 2
    assert "3 rounds in a row were lost" in err
    assert "a learning rate that is too large (lr 1e+30)" in err


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_a_run_of_clients_that_train_alone_fails_like_any_other(umbel: Umbel, rounds: int) -> None:
    """A model of NaN was 9.9 % right: argmax of NaN is class 0."""
    code, out, err = umbel("run", "solo", *SMALL, "--rounds", rounds, "--lr", 1e30)
    assert (code, out.count("  round "), err.count("\n")) == (2, rounds - 1, 1), out
    assert "none of 4 clients gave a usable answer (not finite). The usual cause is a learning rate" in err


@pytest.mark.parametrize("method", ALGORITHMS)
def test_no_method_scores_by_a_model_that_broke_down(umbel: Umbel, method: str) -> None:
    """Every method ends in one sentence."""
    code, _, err = umbel("run", method, "--data", "digits", "--clients", 4, "--rounds", 3, "--epochs", 1, "--device",
                         "cpu", "--lr", 1e30)
    assert (code, err.count("\n")) == (2, 1), err
    assert "usable answer (not finite). The usual cause is a learning rate that is too large (lr 1e+30)." in err


# Runs


def test_a_run_prints_its_rounds_and_its_result(umbel: Umbel, tmp_path: Path) -> None:
    """Off a terminal: a line a round, the three accuracies, clusters, cost, and where it all lies."""
    code, out, err = umbel("run", "fedavg", "--scenario", "rotation-4", *SMALL, "--join", "3@1", "--leave", "2@1")
    assert (code, err) == (0, "")
    assert re.search(r"^fedavg  round 2/2  clusters 1  accuracy \d+\.\d\d %  \d+\.\d s$", out, re.MULTILINE)
    assert "the cluster's model" in out
    assert "± standard deviation over clients" in out
    assert "\nOne cluster.\nARI against the true groups" in out
    assert "1 clients not placed" in out
    assert out.endswith("Run folder: runs/fedavg-digits-rotation-4-s0\n")
    assert max(map(len, out.splitlines())) <= 80
    assert umbel("run", "fedavg", "--scenario", "rotation-4", *SMALL, "-q").out.endswith("rotation-4-s0-2\n")


def test_a_runs_recipe_runs_again_to_the_same_state(umbel: Umbel, tmp_path: Path) -> None:
    """The resolved recipe, and the partition it drew, are the run."""
    options = ("--scenario", "label-skew:labels=0.3", "--fraction", "0.5", "--set", "mu=0.7", "--lr", "0.05")
    assert umbel("run", "fedprox", *SMALL, *options, "--seed", 3, "--out", "a").code == 0
    assert umbel("run", "a/recipe.toml", "--out", "b").code == 0
    assert umbel("run", "a/recipe.toml", "--partition", "a/partition.npz", "--out", "c").code == 0
    assert umbel("run", "a/recipe.toml", "--set", "mu=0", "--out", "d").code == 0
    assert digest(tmp_path / "a") == digest(tmp_path / "b") == digest(tmp_path / "c") != digest(tmp_path / "d")
    assert (tmp_path / "a" / "recipe.toml").read_bytes() == (tmp_path / "b" / "recipe.toml").read_bytes()
    params = json.loads((tmp_path / "a" / "result.json").read_text())["params"]
    given = {"mu": 0.7, "lr": 0.05, "momentum": 0.5, "epochs": 1, "batch": 100, "rows": "train", "optimiser": "sgd"}
    assert {name: params[name] for name in given} == given


def test_a_finished_run_says_so_and_stays_as_it_is(umbel: Umbel, tmp_path: Path) -> None:
    """--resume on a finished run shows its result again, changes nothing, and is no error."""
    assert umbel("run", "fedavg", *SMALL, "--out", "a").code == 0
    before = snapshot(tmp_path)
    code, out, err = umbel("run", "--resume", "--out", "a")
    assert (code, err) == (0, "")
    assert out.startswith("This run is finished already: a\n")
    assert "the cluster's model" in out
    assert snapshot(tmp_path) == before


def test_a_finished_run_can_be_given_more_rounds(umbel: Umbel, tmp_path: Path) -> None:
    """--resume --rounds goes on behind the end, once; fewer rounds than are done are refused, nothing is touched."""
    assert umbel("run", "fedavg", *SMALL, "--rounds", "2", "--out", "a").code == 0
    before = snapshot(tmp_path)
    refused = umbel("run", "--resume", "--out", "a", "--rounds", "1")
    assert refused.err.startswith("Error: The run in a has done 2 rounds already: it can go on to more of them.")
    assert snapshot(tmp_path) == before
    assert umbel("run", "--resume", "--out", "a", "--rounds", "3").code == 0
    assert len((tmp_path / "a" / "rounds.jsonl").read_text().splitlines()) == 4
    assert umbel("run", "--resume", "--out", "a", "--rounds", "3").out.startswith("This run is finished already: a\n")


# Real processes


def test_a_killed_run_ends_as_if_it_had_not_been_killed(umbel: Umbel, tmp_path: Path) -> None:
    """SIGKILL twice, then Ctrl-C, then --resume: the final state is the uninterrupted run's, to the last bit."""
    assert umbel(*LONG, "--out", "whole").code == 0
    code, _ = stop_after(start(*LONG, "--out", "killed", cwd=tmp_path), 2, signal.SIGKILL)
    assert code == -signal.SIGKILL
    reached = json.loads((tmp_path / "killed" / "checkpoint.json").read_text())["round"]
    assert -1 <= reached < 11  # rounds of milliseconds share a checkpoint
    assert not (tmp_path / "killed" / "result.json").exists()
    code, _ = stop_after(start("run", "--resume", "--out", "killed", cwd=tmp_path), reached + 2, signal.SIGKILL)
    assert code == -signal.SIGKILL
    reached = json.loads((tmp_path / "killed" / "checkpoint.json").read_text())["round"]
    code, err = stop_after(start("run", "--resume", "--out", "killed", cwd=tmp_path), reached + 2, signal.SIGINT)
    assert code == 130
    assert re.fullmatch(r"Interrupted after \d+ of 12 rounds. Go on with: umbel run --resume --out killed\n", err)
    assert umbel(*LONG, "--resume", "--out", "killed").code == 0
    assert digest(tmp_path / "killed") == digest(tmp_path / "whole")
    results = [json.loads((tmp_path / name / "result.json").read_text()) for name in ("killed", "whole")]
    assert {**results[0], "seconds": None} == {**results[1], "seconds": None}
    assert sorted(p.name for p in (tmp_path / "killed").iterdir()) == sorted(
        p.name for p in (tmp_path / "whole").iterdir())


def test_an_error_of_the_real_command_has_no_traceback(tmp_path: Path) -> None:
    """The installed command: one line on stderr, exit code 2."""
    process = start("run", "fedagv", cwd=tmp_path)
    out, err = process.communicate()
    assert (process.returncode, out) == (2, "")
    assert err == "Error: There is no method 'fedagv'. Did you mean 'fedavg'?\n"


def test_a_terminal_shows_a_live_bar(tmp_path: Path) -> None:
    """On a terminal of 80 columns: name, bar, rounds, accuracy, time spent and time left, in one line."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 80, 0, 0))
    env = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    process = subprocess.Popen(
        [sys.executable, "-m", "umbel.cli", "compare", "fedavg-ft", *SMALL, "--rounds", "3", "--seed", "10"],
        cwd=tmp_path, env={**env, "TERM": "xterm-256color"}, stdin=theirs, stdout=theirs, stderr=theirs,
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        shown += part
    os.close(ours)
    assert process.wait() == 0
    frames = [plain(frame) for frame in re.split(r"[\r\n]+", shown.decode())]
    bars = [frame for frame in frames if frame.startswith("fedavg-ft seed 10 ━")]
    assert re.search(r"━+ 3/3 \d+\.\d\d % \d:\d\d:\d\d left 0:00:00", bars[-1])
    assert any("0/3" in bar for bar in bars)
    assert all(len(bar) <= 80 and "…" not in bar for bar in bars)


# Comparisons


def test_a_comparison_is_a_table_and_two_files(umbel: Umbel, tmp_path: Path) -> None:
    """Methods side by side over seeds: the table fits 80 columns; JSON and CSV lie beside the runs."""
    words = ("compare", "fedavg", "solo", "fedprox", *SMALL, "--scenario", "rotation-4", "--seeds", 2,
             "--set", "fedprox.mu=0.3", "--out", "c")
    code, out, err = umbel(*words)
    assert (code, err) == (0, "")
    assert "± standard deviation over 2 seeds." in out
    assert "…" not in out
    assert max(map(len, out.splitlines())) <= 80
    assert re.search(r"^solo +\d+\.\d\d ± \d+\.\d\d +– ", out, re.MULTILINE)
    lines = json.loads((tmp_path / "c" / "compare.json").read_text())
    assert [(line["method"], line["seeds"]) for line in lines] == [("fedavg", 2), ("solo", 2), ("fedprox", 2)]
    with (tmp_path / "c" / "compare.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["method"] for row in rows] == ["fedavg", "solo", "fedprox"]
    assert [float(row["score"]) for row in rows] == [line["score"] for line in lines]
    folders = sorted(path.name for path in (tmp_path / "c").iterdir() if path.is_dir())
    assert folders == ["fedavg-s0", "fedavg-s1", "fedprox-s0", "fedprox-s1", "solo-s0", "solo-s1"]
    hashes = {json.loads((tmp_path / "c" / name / "result.json").read_text())["partition_hash"]
              for name in folders if name.endswith("s1")}
    assert len(hashes) == 1  # the same partition for all methods

    before = snapshot(tmp_path)
    assert "round" not in umbel(*words).out.replace("rounds", "")  # all were there
    assert snapshot(tmp_path) == before
    (tmp_path / "c" / "solo-s1" / "result.json").unlink()  # as if it had been stopped at its end
    assert umbel(*words).code == 0
    kept = [name for name in before if before[name] is not None and not name.endswith(("compare.json", "compare.csv"))]
    assert {name: Path(name).read_bytes() for name in kept} == {name: before[name] for name in kept}
    one = umbel("compare", "fedavg", *SMALL, "--scenario", "rotation-4", "--out", "c").out
    assert "over clients (one seed)" in one  # the second seed's run is there, and not asked for


def test_a_comparison_refuses_runs_of_another(umbel: Umbel, tmp_path: Path) -> None:
    """One differing run is told before any other is begun."""
    assert umbel("run", "solo", *SMALL, "--out", "c/solo-s0").code == 0
    before = snapshot(tmp_path)
    said = umbel("compare", "fedavg", "solo", *SMALL, "--rounds", 3, "--out", "c")
    assert (said.code, said.out) == (2, "")
    assert "c/solo-s0 is from another recipe: its 'rounds' is 2, asked for is 3." in said.err
    assert snapshot(tmp_path) == before


# Help


@pytest.mark.parametrize(("what", "names"), [
    ("methods", ALGORITHMS), ("data", DATASETS), ("scenarios", SCENARIOS), ("models", MODELS),
])
def test_lists_name_everything(what: str, names: dict[str, object], umbel: Umbel) -> None:
    """A list has a line for each registered name."""
    code, out, _ = umbel("list", what)
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[1:] if line[0] != " "] == list(names)


def test_data_are_listed_with_their_terms(umbel: Umbel) -> None:
    """And with whom these ask to name."""
    out = " ".join(umbel("list", "data").out.split())
    for name in ("Andras Janosi", "William Steinbrunn", "Matthias Pfisterer", "Robert Detrano", "Kwapisz"):
        assert name in out
    assert "svhn: non-commercial use only." in out


def test_the_version_is_told(umbel: Umbel) -> None:
    """--version prints a name and a number."""
    assert re.fullmatch(r"umbel \d+\.\d+\.\d+(\.dev\d+)?\n", umbel("--version").out)


@pytest.mark.parametrize("command", ["run", "compare", "diagnose", "list"])
def test_help_explains_every_option_and_argument(command: str, umbel: Umbel) -> None:
    """No option without words; arguments are told in the text; options stand in panels."""
    group = typer.main.get_command(cli.app)
    parameters = group.commands[command].params  # type: ignore[attr-defined]
    assert all(each.help for each in parameters if each.param_type_name == "option")
    out = umbel(command, "--help").out
    for each in parameters:
        if each.param_type_name == "argument":
            assert re.search(rf"\b{each.name.upper()} (is|are) ", out)
    if command != "list":
        assert [panel for panel in ("─ Data ─", "─ Training ─", "─ Run ─") if panel not in out] == []


def test_without_words_the_help_is_shown(umbel: Umbel) -> None:
    """A bare `umbel` names its commands."""
    said = umbel()
    assert all(f"│ {name} " in said.out + said.err for name in ("run", "compare", "diagnose", "list"))
