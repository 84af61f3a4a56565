"""Cells as processes: each is an `umbel run` of its own recipe in its own folder, several at once.

Finished runs are kept, interrupted ones resume, and a cell that fails says why while the others run.
"""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from umbel.errors import UmbelError
from umbel.files import write_atomically
from umbel.reproduce.table import TableCell
from umbel.runs.experiment import Experiment
from umbel.runs.session import same_recipe

SECONDS_TO_STOP = 10.0  # that an interrupted process gets to write its checkpoint


class Job(NamedTuple):
    """One run of a cell."""

    cell: TableCell
    seed: int
    experiment: Experiment
    folder: Path

    @property
    def name(self) -> str:
        """What people see: row, column and seed."""
        return f"{self.cell.name}, seed {self.experiment.seed}"

    @property
    def total(self) -> int:
        """Rounds, pre-training included."""
        return self.experiment.rounds + self.experiment.algorithm().pretrain

    @property
    def done(self) -> int:
        """Rounds that are on disk; the first record is of the state before round 0."""
        lines = self.folder / "rounds.jsonl"
        return max(0, lines.read_bytes().count(b"\n") - 1) if lines.is_file() else 0

    @property
    def finished(self) -> bool:
        """Whether its folder has a result; that of another recipe is refused, but the device may differ."""
        if not (self.folder / "result.json").exists():
            return False
        same_recipe(self.folder, replace(self.experiment, device="cpu"), but="device")
        return True


def folder_of(out: Path, cell: TableCell, experiment: Experiment) -> Path:
    """Where a run lies: row, column, rounds and seed in its name."""
    plain = re.sub(r"[^\w.=%-]+", "_", f"{cell.row}--{cell.column}")
    return out / f"{plain}--r{experiment.rounds}-s{experiment.seed}"


class Ended(NamedTuple):
    """A job whose process has ended, and its sentence if it failed."""

    job: Job
    complaint: str
    seconds: float


class Players:
    """Runs jobs, `at_once` processes at a time; `stop` interrupts them, and they keep their checkpoints."""

    def __init__(self, jobs: Sequence[Job], at_once: int, data_dir: Path | None) -> None:
        self.jobs, self.at_once, self.data_dir = jobs, at_once, data_dir
        self._running: dict[int, subprocess.Popen[str]] = {}
        self._stopped = threading.Event()

    def play(self, tick: float = 0.5) -> Generator[Ended | None, None, None]:
        """Each job as it ends; None now and then, for a progress bar."""
        with ThreadPoolExecutor(self.at_once) as pool:
            waiting: set[Future[Ended]] = {pool.submit(self._one, job) for job in self.jobs}
            try:
                while waiting:
                    ended, waiting = wait(waiting, timeout=tick, return_when=FIRST_COMPLETED)
                    yield None
                    yield from (each.result() for each in ended)
            finally:
                for each in waiting:
                    each.cancel()
                self.stop()

    def stop(self) -> None:
        """Interrupt what runs, wait for it, and end what does not stop."""
        self._stopped.set()
        running = list(self._running.values())
        limit = time.monotonic() + SECONDS_TO_STOP
        while running and time.monotonic() < limit:
            for process in running:  # again each second: an interruption inside a callback of C code is lost
                process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                running[0].wait(1.0)
            running = [process for process in running if process.poll() is None]
        for process in running:
            process.kill()

    def _one(self, job: Job) -> Ended:
        started = time.monotonic()
        if self._stopped.is_set():
            return Ended(job, "interrupted", 0.0)
        recipe = job.folder.parent / "recipes" / f"{job.folder.name}.toml"
        recipe.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(recipe, job.experiment.to_toml().encode())
        command = [sys.executable, "-m", "umbel.cli", "run", str(recipe), "--quiet", "--out", str(job.folder),
                   "--workers", "1" if self.at_once > 1 else str(os.cpu_count() or 1)]
        command += ["--resume"] if (job.folder / "recipe.toml").exists() else []
        command += ["--data-dir", str(self.data_dir)] if self.data_dir else []
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                              env=self._environment()) as process:
            self._running[id(process)] = process
            if self._stopped.is_set():  # while it was being started: `stop` did not see it
                process.send_signal(signal.SIGINT)
            _, errors = process.communicate()
            del self._running[id(process)]
        return Ended(job, _sentence(errors, process.returncode), time.monotonic() - started)

    def _environment(self) -> Mapping[str, str]:
        """Processes side by side share the cores instead of fighting for them."""
        threads = max(1, (os.cpu_count() or 1) // self.at_once)
        return {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}


def _sentence(errors: str, code: int) -> str:
    """The last line that a failed process wrote: umbel's own sentence, or the end of a traceback."""
    if not code:
        return ""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    last = lines[-1].removeprefix("Error: ") if lines else "it gave no reason"
    return last if last.endswith(".") else f"{last} (exit code {code})."


def refuse_run_folder(out: Path) -> None:
    """Refuse a folder that is a run itself: a table's folder holds runs."""
    if (out / "recipe.toml").exists():
        raise UmbelError(f"The folder {out} must hold a table's runs. It is a run itself: choose another --out.")
