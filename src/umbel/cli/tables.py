"""What `umbel reproduce` does."""

import shlex
from collections.abc import Sequence
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table as Grid
from rich.text import Text

from umbel.cli.base import Stopped, console, cores, fail, say, undisturbed
from umbel.data import sources
from umbel.fields import SEEDS, bounded
from umbel.reproduce import beside, gather, selection
from umbel.reproduce.beside import Comparison
from umbel.reproduce.cells import Ended, Job, Players, refuse_run_folder
from umbel.reproduce.measures import MEASURES
from umbel.reproduce.selection import AtHand
from umbel.reproduce.table import Table, TableCell, load
from umbel.runs.experiment import Experiment

ON_ONE_GPU = 4  # runs at a time that share it, unless --jobs says otherwise
COLOURS = {"pass": "green", "fail": "red", "failed": "red", "skipped": "yellow", "not run": "dim"}


def reproduce(*, name: str, only: list[str] | None, seeds: int, rounds: int | None, device: str, jobs: int | None,
              out: Path | None, show: bool, data_dir: Path | None) -> None:
    """Play the cells that are not there yet, and show the table."""
    again = _again(locals())
    seeds = bounded(seeds, "seeds", "a table", ge=1, le=SEEDS)
    jobs = jobs and bounded(jobs, "jobs", "a table", ge=1, le=1000)
    table = load(name)
    # What needs no run is computed even with --show.
    chosen = [] if show and not table.compute else selection.selected(table, only or [])
    folder = out or Path("runs") / "reproduce" / "-".join(Path(name).with_suffix("").parts[-2:]).replace(".toml", "")
    refuse_run_folder(folder)
    resolved = Experiment(device=device).resolved().device
    at_hand = AtHand.look(sorted({each for cell in table.cells for each in selection.sets_of(table, cell)}), data_dir)
    reasons: dict[TableCell, str] = {}
    if table.compute:
        bring = cache(lambda each: sources.open_dataset(each, data_dir))
        with console.status("Computing ..."):
            outcomes = {cell: gather.by_computing(table, cell, bring, seeds, at_hand) for cell in chosen}
    else:
        runs = list(selection.jobs(table, folder, seeds=seeds, rounds=rounds, device=device, at_hand=at_hand))
        todo, reasons = gather.still_to_run(table, runs, chosen, at_hand)
        at_once = jobs or (ON_ONE_GPU if resolved == "cuda" else cores())
        reasons |= _play(todo, Players(todo, at_once, data_dir), again) if todo else {}
        outcomes = gather.from_runs(table, runs, reasons)
    made = beside.comparisons(table, outcomes, at_hand.parts)
    head = beside.head(table, made, outcomes, at_hand.parts)
    beside.write(folder, table, made, head, {"seeds": seeds, "rounds": rounds, "parts": dict(at_hand.parts)})
    _show(table, made, head)
    say(f"Runs, table.json, table.csv and table.md: {folder}")
    if any(reason.startswith("failed") for reason in reasons.values()):
        raise typer.Exit(1)


def _again(options: dict[str, Any]) -> str:
    """The command that goes on with this table."""
    words = ["umbel", "reproduce", options["name"]]
    for text in options["only"] or []:
        words += ["--only", text]
    for name, usual in (("seeds", 1), ("rounds", None), ("device", "auto"), ("jobs", None), ("out", None),
                        ("data_dir", None)):
        if options[name] != usual:
            words += [f"--{name.replace('_', '-')}", str(options[name])]
    return shlex.join(words)


def _play(todo: Sequence[Job], players: Players, again: str) -> dict[TableCell, str]:
    """Run them, showing what ends; a signal keeps what is finished, and says how to go on."""
    complaints: dict[TableCell, str] = {}
    ended = 0
    columns = (TextColumn("[bold]{task.description}"), BarColumn(), TextColumn("{task.percentage:.0f} %"),
               TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task(f"{len(todo)} runs", total=sum(job.total for job in todo))
        try:
            with closing(players.play()) as playing:
                for event in playing:
                    progress.update(bar, completed=sum(job.done for job in todo))
                    if isinstance(event, Ended):
                        ended += 1
                        if event.complaint:
                            complaints[event.job.cell] = f"failed: {event.complaint}"
                        say(f"{ended}/{len(todo)}  {event.job.name}: {event.complaint or f'{event.seconds:.0f} s'}")
        except Stopped as end:
            undisturbed()
            progress.stop()
            fail(f"Interrupted with {ended} of {len(todo)} runs finished. Go on with: {again}", end.code)
    return complaints


def _show(table: Table, made: Sequence[Comparison], head: Sequence[str]) -> None:
    """The table on the screen: columns of the paper are sections, one line a figure, reasons below."""
    console.print()
    console.print(Text(f"{table.name}. {table.title}", style="bold"))
    for sentence in [table.paper, *head]:
        console.print(Text(sentence, style="dim"))
    grid = Grid(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    grid.add_column("", no_wrap=True)
    grid.add_column("measure")
    for column in ("ours", "theirs", "differ"):
        grid.add_column(column, justify="right", no_wrap=True)
    grid.add_column("", no_wrap=True)
    notes = beside.footnotes(made)
    section = row = ""
    for line in made:
        if line.column != section:
            section, row = line.column, ""
            grid.add_row(Text(section, style="bold"))
        verdict = Text(line.verdict, style=COLOURS.get(line.verdict, ""))
        verdict.append("".join(f" [{notes[reason]}]" for reason in line.why), style="dim")
        grid.add_row(f"  {line.row}" if line.row != row else "", MEASURES[line.measure].words, *beside.texts(line),
                     verdict)
        row = line.row
    console.print(grid, highlight=False)
    for reason, k in notes.items():
        console.print(Text(f"[{k}] {reason}", style="dim"))
    say(f"{beside.counted(made)}.")
