"""`umbel reproduce`: what can be typed. What is done then stands in `tables`, which brings torch."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from umbel.cli import complete
from umbel.cli.base import app
from umbel.cli.options import DataDir

_option = partial(typer.Option, rich_help_panel="Table")


@app.command()
def reproduce(
    name: Annotated[str, typer.Argument(hidden=True, autocompletion=complete.tables)],
    only: Annotated[list[str] | None, _option(help="Only cells with these words; may be given several times.")] = None,
    seeds: Annotated[int, _option(min=1, help="Seeds of each cell, from the paper's on.")] = 1,
    rounds: Annotated[int | None, _option(min=1, help="At most so many rounds. Default: the paper's.")] = None,
    device: Annotated[str, _option(autocompletion=complete.devices, help="auto, cpu or cuda.")] = "auto",
    jobs: Annotated[int | None, _option(min=1, help="Runs at a time. Default: one a core; four on a GPU.")] = None,
    out: Annotated[Path | None, _option(help="Folder of the runs. Default: runs/reproduce/PAPER-TABLE.")] = None,
    show: Annotated[bool, _option("--show", help="Run nothing: show what is there.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Show a paper's table with our figures beside the printed ones.

    NAME is PAPER/TABLE; `umbel list tables`. PAPER may be a TOML file of your own. Finished cells are kept in the
    folder: the same command goes on where it was stopped, and a cell that was not run is printed as such. Where one
    failed, the table is shown and written, and the exit code is 1.

    Example: umbel reproduce comparative/table2 --only mnist
    """
    typed = locals()
    from umbel.cli import tables

    tables.reproduce(**typed)
