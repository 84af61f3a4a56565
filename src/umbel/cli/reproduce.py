"""`umbel reproduce`."""

import shlex
from functools import cache, partial
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table as Grid
from rich.text import Text

from umbel.cli.base import app, console, cores, fail, say
from umbel.cli.run import DataDir
from umbel.data import sources
from umbel.errors import UmbelError
from umbel.experiment import Experiment
from umbel.reproduce import beside, cells, plan
from umbel.reproduce.beside import Line, Outcome
from umbel.reproduce.cells import Ended, Job, Players
from umbel.reproduce.computed import COMPUTED
from umbel.reproduce.measures import MEASURES, Finished
from umbel.reproduce.plan import AtHand
from umbel.reproduce.table import Cell, Table, load

ON_ONE_GPU = 4  # runs at a time that share it, unless --jobs says otherwise
COLOURS = {"pass": "green", "fail": "red", "failed": "red", "skipped": "yellow", "not run": "dim"}

_option = partial(typer.Option, rich_help_panel="Table")


@app.command()
def reproduce(
    name: Annotated[str, typer.Argument(hidden=True)],
    only: Annotated[list[str] | None, _option(help="Only cells with these words; may be given several times.")] = None,
    seeds: Annotated[int, _option(min=1, help="Seeds of each cell, from the paper's on.")] = 1,
    rounds: Annotated[int | None, _option(min=1, help="At most so many rounds. Default: the paper's.")] = None,
    device: Annotated[str, _option(help="auto, cpu or cuda.")] = "auto",
    jobs: Annotated[int | None, _option(min=1, help="Runs at a time. Default: one a core; four on a GPU.")] = None,
    out: Annotated[Path | None, _option(help="Folder of the runs. Default: runs/reproduce/PAPER-TABLE.")] = None,
    data_dir: DataDir = None,
) -> None:
    """Show a paper's table with our figures beside the printed ones.

    NAME is PAPER/TABLE; `umbel list tables`. Finished cells are kept in the folder: the same command goes on where it
    was stopped, and a cell that was not run is printed as such.

    Example: umbel reproduce comparative/table2 --only mnist
    """
    table = load(name)
    chosen = plan.selected(table, only or [])
    folder = out or Path("runs") / "reproduce" / name.replace("/", "-")
    cells.refuse_run_folder(folder)
    Experiment(device=device).resolved()
    at_hand = AtHand.look(sorted({each for cell in table.cells for each in plan.sets_of(table, cell)}), data_dir)
    again = _again(locals())
    if table.compute:
        outcomes = _computed(table, chosen, seeds, at_hand, data_dir)
    else:
        todo = list(plan.jobs(table, table.cells, folder, seeds=seeds, rounds=rounds, device=device, at_hand=at_hand))
        outcomes = _run(table, todo, set(chosen), at_hand, _players(jobs, device), data_dir, again)
    made = beside.lines(table, outcomes, at_hand.parts)
    told = beside.head(table, made, at_hand.parts, _fewer(outcomes))
    beside.write(folder, table, made, told, {"seeds": seeds, "rounds": rounds, "parts": dict(at_hand.parts)})
    _show(table, made, told)
    say(f"Runs, table.json, table.csv and table.md: {folder}")


def _again(options: dict[str, object]) -> str:
    """The command that goes on with this table."""
    words = ["umbel", "reproduce", str(options["name"])]
    for text in options["only"] or []:  # type: ignore[attr-defined]
        words += ["--only", text]
    for name in ("seeds", "rounds", "device", "jobs", "out", "data_dir"):
        value = options[name]
        if value not in (None, "auto") and (name, value) != ("seeds", 1):
            words += [f"--{name.replace('_', '-')}", str(value)]
    return shlex.join(words)


def _players(jobs: int | None, device: str) -> int:
    return jobs or (ON_ONE_GPU if Experiment(device=device).resolved().device == "cuda" else cores())


def _computed(table: Table, chosen: list[Cell], seeds: int, at_hand: AtHand,
              data_dir: Path | None) -> dict[Cell, Outcome]:
    found = {}
    bring = cache(lambda each: sources.load(each, data_dir))
    for cell in chosen:
        if reason := plan.skipped(table, cell, at_hand):
            found[cell] = Outcome(status=f"skipped: {reason}")
            continue
        with console.status(f"{cell.name} ..."):
            drawn = [COMPUTED[table.compute](cell, bring, seed) for seed in range(seeds)]
        found[cell] = Outcome({name: [each[name] for each in drawn] for name in drawn[0]}, status="")
    return found


def _run(table: Table, jobs: list[Job], chosen: set[Cell], at_hand: AtHand, at_once: int, data_dir: Path | None,
         again: str) -> dict[Cell, Outcome]:
    """Play what is asked for and not there yet; read all that is there."""
    complaints: dict[Cell, str] = {}
    todo = []
    for job in jobs:
        reason = plan.skipped(table, job.cell, at_hand)
        try:
            if reason:
                complaints[job.cell] = f"skipped: {reason}"
            elif not job.finished and job.cell in chosen:
                todo.append(job)
        except UmbelError as error:
            complaints[job.cell] = f"failed: {error}"
    todo = [job for job in todo if job.cell not in complaints]
    if todo:
        complaints |= _play(todo, Players(todo, at_once, data_dir), again)
    return {cell: _outcome(table, cell, [job for job in jobs if job.cell == cell], complaints.get(cell, ""))
            for cell in table.cells}


def _outcome(table: Table, cell: Cell, jobs: list[Job], complaint: str) -> Outcome:
    target = table.targets.get(cell.column)
    done = [Finished(job.folder, table.reading(cell), None if target is None else target / 100)
            for job in jobs if not complaint and job.finished]
    found = Outcome.of(table, cell, done) if done else Outcome(status=complaint or beside.NOT_RUN)
    full, ours = table.experiment(cell).rounds, jobs[0].experiment.rounds
    found.fewer_rounds = f"{ours} of {full}" if done and ours < full else ""
    return found


def _play(todo: list[Job], players: Players, again: str) -> dict[Cell, str]:
    """Run them, showing what ends; Ctrl-C keeps what is finished and says how to go on."""
    complaints: dict[Cell, str] = {}
    ended = 0
    columns = (TextColumn("[bold]{task.description}"), BarColumn(), TextColumn("{task.percentage:.0f} %"),
               TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task(f"{len(todo)} runs", total=sum(job.total for job in todo))
        playing = players.play()
        try:
            for event in playing:
                progress.update(bar, completed=sum(job.done for job in todo))
                if isinstance(event, Ended):
                    ended += 1
                    if event.complaint:
                        complaints[event.job.cell] = f"failed: {event.complaint}"
                    say(f"{ended}/{len(todo)}  {event.job.name}: {event.complaint or f'{event.seconds:.0f} s'}")
        except KeyboardInterrupt:
            playing.close()
            progress.stop()
            fail(f"Interrupted with {ended} of {len(todo)} runs finished. Go on with: {again}", 130)
    return complaints


def _fewer(outcomes: dict[Cell, Outcome]) -> str:
    told = sorted({each.fewer_rounds for each in outcomes.values() if each.fewer_rounds})
    return f"Rounds: {', '.join(told)} of the paper's." if told else ""


def _show(table: Table, made: list[Line], told: list[str]) -> None:
    """The table on the screen: columns of the paper are sections, one line a figure, reasons below."""
    console.print()
    console.print(Text(f"{table.name}. {table.title}", style="bold"))
    for sentence in [table.paper, *told]:
        console.print(Text(sentence, style="dim"))
    grid = Grid(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    for column, where in (("", "left"), ("measure", "left"), ("ours", "right"), ("theirs", "right"), ("differ", "right"),
                          ("", "left")):
        grid.add_column(column, justify=where, no_wrap=column != "measure")  # type: ignore[arg-type]
    notes = beside.footnotes(made)
    section = row = ""
    for line in made:
        if line.column != section:
            section, row = line.column, ""
            grid.add_row(Text(section, style="bold"))
        verdict = Text(line.verdict, style=COLOURS.get(line.verdict, ""))
        verdict.append("".join(f" [{notes[reason]}]" for reason in line.why), style="dim")
        grid.add_row(f"  {line.row}" if line.row != row else "", MEASURES[line.measure].words,
                     *beside.texts(line), verdict)
        row = line.row
    console.print(grid, highlight=False)
    for reason, k in notes.items():
        console.print(Text(f"[{k}] {reason}", style="dim"))
    say(f"{beside.counted(made)}." if beside.counted(made) else "")
