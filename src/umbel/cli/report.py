"""`umbel report`."""

from pathlib import Path
from typing import Annotated

import typer

from umbel.cli.base import app, complain, say
from umbel.errors import UmbelError


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(hidden=True)],
    out: Annotated[Path | None, typer.Option(
        help="The file or folder to write to. Default: report.html in RUNS where it is one folder, else here.")] = None,
    figures: Annotated[Path | None, typer.Option(help="Write figures for a paper here also, as PNG and SVG.")] = None,
    show: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Explain finished runs in one HTML page that needs no network: tables, clusters, why, and for whom they pay.

    RUNS are run folders, or folders of `umbel compare`, which stand for the runs in them. One that cannot be reported
    is named in a sentence; the page shows the others, and the exit code is 2.

    Example: umbel report runs/fedavg-digits-rotation-4-s0 runs/flag-digits-rotation-4-s0 --out report.html
    """
    from umbel.pages import load  # brings numpy and torch
    from umbel.pages.write import write

    finished, wrong = [], []
    for path in dict.fromkeys(inside for run in runs for inside in load.expand(run)):
        try:
            finished.append(load.load(path))
        except UmbelError as error:
            wrong.append(str(error))
    for sentence in wrong:
        complain(sentence)
    if finished:
        target, drawn = write(finished, out or (runs[0] if len(runs) == 1 else Path()) / "report.html", figures)
        say(f"Report: {target}")
        if figures is not None:
            say(f"Figures: {drawn} files in {figures}")
        if show:
            import webbrowser

            webbrowser.open(target.resolve().as_uri())
    if wrong:
        raise typer.Exit(2)
