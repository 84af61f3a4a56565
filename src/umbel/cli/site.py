"""`umbel site`: for whoever answers for a site of a real federation."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from umbel.cli.base import app, console, say
from umbel.errors import UmbelError

if TYPE_CHECKING:
    from collections.abc import Mapping

site = typer.Typer(help="At a site: what a server could ask of it, and what it asked.", no_args_is_help=True)
app.add_typer(site, name="site")


@site.command()
def check(
    folder: Annotated[Path, typer.Argument(hidden=True)],
    node_config: Annotated[str, typer.Option(help="What the SuperNode is given as --node-config.")],
) -> None:
    """Say what a server could ask of this site and get, before it is connected.

    FOLDER is the Flower app's; its code runs, as it would at the site. Reads data and policy, and tries whether the
    memory can be written.

    Example: umbel site check app --node-config 'name="site-a" data="site-a.npz" policy="policy.toml"'
    """
    from umbel.flower.check import answers, conditions, site_in  # brings torch and flwr

    found = site_in(folder, node_config)
    for sentence in conditions(found):
        say(sentence)
    table = _table("what", "leaves", "")
    for each in answers(found):
        table.add_row(each.what, Text("yes" if each.allowed else "no", style="green" if each.allowed else "yellow"),
                      Text(each.how))
    console.print(table, highlight=False)


@site.command()
def log(
    place: Annotated[Path, typer.Argument(hidden=True)],
    last: Annotated[int, typer.Option(min=1, help="So many lines, the latest.")] = 40,
    refused: Annotated[bool, typer.Option("--refused", help="Only what was refused.")] = False,
) -> None:
    """Show what was asked of this site, and what left.

    PLACE is the log, or the site's memory-dir, in which it lies.

    Example: umbel site log ~/.umbel/memory --last 100
    """
    from umbel.flower import audit  # brings torch and flwr

    files = sorted((place / audit.FOLDER).glob("*.jsonl")) if place.is_dir() else [place]
    if not files:
        raise UmbelError(f"There is no log in {place}: nothing was asked of a site that remembers there.")
    lines = sorted((line for path in files for line in audit.read(path) if not refused or "refused" in line),
                   key=lambda line: str(line.get("when")))
    many = len({str(line.get("site")) for line in lines}) > 1
    table = _table("when (UTC)", *(["site"] if many else []), "run", "round", "asked", "in", "out", "what left")
    table.columns[0].no_wrap = True
    for line in lines[-last:]:
        table.add_row(*map(Text, _row(line, many)), _left(line))
    console.print(table, highlight=False)
    out = sum(line["out"] for line in lines if type(line.get("out")) is int)
    say(f"{len(lines):,} messages, {sum('refused' in line for line in lines):,} refused, {out:,} bytes out.")


def _row(line: "Mapping[str, Any]", many: bool) -> list[str]:
    when = str(line.get("when", "?"))[:19].replace("T", " ")
    site = [str(line.get("site"))] if many else []
    asked = " ".join(dict.fromkeys(str(line[name]) for name in ("phase", "task") if name in line))
    numbers = [f"{line[name]:,}" if type(line.get(name)) is int else "?" for name in ("in", "out")]
    return [when, *site, str(line.get("run", ""))[:8], str(line.get("round", "")), asked, *numbers]


def _left(line: "Mapping[str, Any]") -> Text:
    """Names and shapes of the arrays, or the sentence of a refusal."""
    if "refused" in line:
        return Text(f"refused: {line['refused']}", style="yellow")
    arrays = line.get("left")
    parts = [f"{name} {'x'.join(map(str, shape))}".rstrip() for name, shape in arrays.items()] \
        if isinstance(arrays, dict) else []
    many = f" and {len(parts) - 6} more" if len(parts) > 6 else ""
    jobs = f", {line['jobs']} times" if line.get("jobs", 1) != 1 else ""
    return Text(", ".join(parts[:6]) + many + jobs if parts else "words alone")


def _table(*headers: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for header in headers:
        table.add_column(header, overflow="fold")
    return table
