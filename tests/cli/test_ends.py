"""How a command ends before its end: by a signal, by a reader who has gone, by a disk that is full."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from terminal import SMALL, Umbel, environment, start, stop_after

MANY = ("--clients", "4", "--epochs", "1", "--batch", "50", "--device", "cpu", "--rounds", "300")
SHARED = ("run", "fedavg", *MANY, "--model", "lenet5", "--workers", "2", "--out", "r")
AT_ONCE = "from umbel.engines import simulator; simulator.WORTH = 0.0"  # workers, however little there is to do


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_run_as_ctrl_c_does(by: signal.Signals, umbel: Umbel, tmp_path: Path,
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    """What was done is kept, workers have ended, temporary data are gone, and it says how to go on."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    process = start(*SHARED, cwd=tmp_path, first=AT_ONCE)
    code, err = stop_after(process, 3, by)
    assert code == 128 + by
    told = re.fullmatch(r"Interrupted after (\d+) of 300 rounds. Go on with: umbel run --resume --out r\n", err)
    assert told is not None
    assert len((tmp_path / "r" / "rounds.jsonl").read_text().splitlines()) == int(told[1]) + 1 >= 4
    assert not list((tmp_path / "temporary").iterdir())


def test_workers_end_with_a_run_that_is_killed(umbel: Umbel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the midst of their work; their data are removed by the next run that has some."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    assert stop_after(start(*SHARED, cwd=tmp_path, first=AT_ONCE), 2, signal.SIGKILL) == (-signal.SIGKILL, "")
    left = list((tmp_path / "temporary").iterdir())
    assert len(left) == 1
    assert sorted(path.name for path in left[0].iterdir()) == ["facts.json", "rows.npz", "x.npy", "y.npy"]
    assert {path.stat().st_mode & 0o777 for path in left[0].iterdir()} == {0o600}
    again = ("run", "--resume", "--out", "r", "--workers", "2")
    assert stop_after(start(*again, cwd=tmp_path, first=AT_ONCE), 9, signal.SIGTERM)[0] == 128 + signal.SIGTERM
    assert not list((tmp_path / "temporary").iterdir())


def test_a_signal_ends_a_comparison_and_says_how_to_go_on(tmp_path: Path) -> None:
    """Exit code 143."""
    code, err = stop_after(start("compare", "fedavg", "solo", *MANY, "--out", "c", cwd=tmp_path), 3, signal.SIGTERM)
    assert code == 143
    assert re.fullmatch(r"Interrupted after \d+ of 300 rounds. Go on with the same command and --out c\n", err)


def test_a_signal_that_is_ignored_stays_so(tmp_path: Path) -> None:
    """As under nohup: the terminal goes, the run goes on to its end."""
    process = start("run", "fedavg", *SMALL, "--out", "r", cwd=tmp_path,
                    first="signal.signal(signal.SIGHUP, signal.SIG_IGN)")
    assert stop_after(process, 1, signal.SIGHUP) == (0, "")
    assert (tmp_path / "r" / "result.json").exists()


def test_who_reads_only_the_beginning_ends_the_run_quietly(umbel: Umbel, tmp_path: Path) -> None:
    """Exit code 141, not a word, and what was done is kept."""
    process = start("run", "fedavg", *MANY, "--out", "r", cwd=tmp_path)
    assert process.stdout is not None
    assert any("round 8/300" in line for line in process.stdout)  # of which most share a checkpoint to come
    process.stdout.close()
    assert process.wait(timeout=60) == 128 + signal.SIGPIPE
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()
    done = len((tmp_path / "r" / "rounds.jsonl").read_text().splitlines()) - 1
    assert 8 <= done < 300
    assert umbel("run", "--resume", "--out", "r", "--quiet").code == 0


def test_a_full_disk_under_the_output_is_a_sentence(tmp_path: Path) -> None:
    """On stderr, with exit code 2, and once."""
    with Path("/dev/full").open("w") as full:
        process = subprocess.run([sys.executable, "-m", "umbel.cli", "list", "models"], stdout=full, text=True,
                                 stderr=subprocess.PIPE, cwd=tmp_path, env=environment(), check=False, timeout=60)
    assert process.returncode == 2
    assert process.stderr == ("Error: What umbel prints cannot be written: No space left on device. Make room there,"
                              " or let it go elsewhere.\n")


def test_a_run_that_is_being_done_cannot_be_gone_on_with(umbel: Umbel, tmp_path: Path) -> None:
    """Of two at once one is refused, and the other goes on."""
    process = start("run", "fedavg", *MANY, "--out", "r", cwd=tmp_path)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("Drawn: 4 clients")
    assert "round 1/300" in process.stdout.readline()
    said = umbel("run", "--resume", "--out", "r")
    assert said.code == 2
    assert said.err == ("Error: The run folder r is in use by another process: wait for it, or use --out.\n")
    assert stop_after(process, 300, signal.SIGCONT)[0] == 0


def test_handlers_of_signals_are_put_back(umbel: Umbel) -> None:
    """Who calls the command from Python has its own again afterwards."""
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    assert umbel("list", "models").code == 0
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before
