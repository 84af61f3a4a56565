"""The outcome of every cell: read from the run folders, or computed."""

from collections.abc import Mapping, Sequence

from umbel.errors import UmbelError
from umbel.reproduce.beside import NOT_RUN, Outcome
from umbel.reproduce.cells import Job
from umbel.reproduce.computed import COMPUTED, Load
from umbel.reproduce.measures import Finished
from umbel.reproduce.selection import AtHand, skipped
from umbel.reproduce.table import Table, TableCell


def still_to_run(table: Table, jobs: Sequence[Job], chosen: Sequence[TableCell],
                 at_hand: AtHand) -> tuple[list[Job], dict[TableCell, str]]:
    """The runs asked for that are not there yet, and why some cells cannot be run."""
    reasons: dict[TableCell, str] = {}
    todo = []
    for job in jobs:
        if reason := skipped(table, job.cell, at_hand):
            reasons[job.cell] = f"skipped: {reason}"
            continue
        try:
            if not job.finished and job.cell in chosen:
                todo.append(job)
        except UmbelError as error:  # the folder has the result of another recipe
            reasons[job.cell] = f"failed: {error}"
    return [job for job in todo if job.cell not in reasons], reasons


def from_runs(table: Table, jobs: Sequence[Job], reasons: Mapping[TableCell, str]) -> dict[TableCell, Outcome]:
    """Every cell of the table: its finished runs, or why there are none."""
    return {cell: _from_runs(table, cell, [job for job in jobs if job.cell == cell], reasons.get(cell, ""))
            for cell in table.cells}


def _from_runs(table: Table, cell: TableCell, jobs: Sequence[Job], reason: str) -> Outcome:
    target, reading = table.targets.get(cell.column), table.reading(cell)
    there = [job for job in jobs if (job.folder / "result.json").exists() and not reason.startswith("skipped")]
    # Where one seed failed the others still count; a result of another recipe does not.
    done = [job for job in there if not reason or _ours(job)]
    if not done:
        return Outcome(status=reason or NOT_RUN)
    runs = [Finished(job.folder, reading, None if target is None else target / 100) for job in done]
    try:
        outcome = Outcome.of(table, cell, runs)
    except UmbelError as error:  # a folder whose files are not a run's: the other cells still count
        return Outcome(status=f"failed: {error}")
    full, ours = table.experiment(cell).rounds, jobs[0].experiment.rounds
    outcome.fewer_rounds = f"{ours} of {full}" if ours < full else ""
    outcome.fewer_seeds = f"{len(done)} of {len(jobs)}" if len(done) < len(jobs) else ""
    return outcome


def _ours(job: Job) -> bool:
    """Whether a job is finished, where the folder may hold the result of another recipe."""
    try:
        return job.finished
    except UmbelError:
        return False


def by_computing(table: Table, cell: TableCell, load: Load, seeds: int, at_hand: AtHand) -> Outcome:
    """A cell that needs no run."""
    if reason := skipped(table, cell, at_hand):
        return Outcome(status=f"skipped: {reason}")
    drawn = [COMPUTED[table.compute](cell, load, seed) for seed in range(seeds)]
    return Outcome({name: [each[name] for each in drawn] for name in drawn[0]}, status="")
