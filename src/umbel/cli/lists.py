"""`umbel list`. What is listed is imported when it is asked for."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from umbel.algorithms import ALGORITHMS
from umbel.cli.base import app, console
from umbel.errors import UmbelError, unknown
from umbel.files import read_text
from umbel.nets import MODELS
from umbel.registry import distribution

if TYPE_CHECKING:
    from umbel.algorithms import Algorithm
    from umbel.data.scenarios import Scenario
    from umbel.nets.objective import Objective
    from umbel.registry import Registry
    from umbel.reproduce.table import Table as PaperTable

Listed = tuple[list[str], list[list[str]]]  # the headers, and a row for each name


def _methods() -> Listed:
    from umbel.runs.recipe import own_settings

    def idea(kind: "type[Algorithm]") -> str:
        """The sentence that its file opens with, without the name before the colon."""
        first = (sys.modules[kind.__module__].__doc__ or "").split("\n\n")[0].splitlines()[0]
        return first.partition(": ")[2] or first

    return ["method", "what it is", "meanings", "own settings"], [
        *([name, idea(kind), kind.meanings, ", ".join(own_settings(kind))] for name, kind in ALGORITHMS.items()),
        *_added(ALGORITHMS, 4),
    ]


def _added(registry: "Registry[Any]", columns: int) -> list[list[str]]:
    """A row for each name that an installed package adds; it is imported when it is used."""
    return [[name, f"of {distribution(entry)}", *[""] * (columns - 2)] for name, entry in registry.added.items()]


def _data() -> Listed:
    from umbel.data.sources import DATASETS, OWN
    from umbel.nets.objective import NextToken

    def target(objective: "Objective") -> str:
        if isinstance(objective, NextToken):
            return "a token"
        columns = objective.outputs
        kind = f"{columns} numbers" if columns > 1 else "a number"
        return f"{objective.classes} classes" if objective.classes else kind

    return ["data", "what it is", "train / test rows", "shape", "target"], [
        [name, each.title, f"{each.train:,} / {each.test:,}", "×".join(map(str, each.shape)), target(each.objective)]
        for name, each in DATASETS.items()
    ] + _added(OWN, 5)


def _terms() -> list[str]:
    """Under what terms each set is given, and whom these ask to name."""
    from umbel.data.sources import DATASETS

    return [f"{name}: {each.terms}{f'; cite {each.cite}' if each.cite else ''}." for name, each in DATASETS.items()]


def _scenarios() -> Listed:
    from umbel.data.scenarios import SCENARIOS

    def described(each: "Scenario") -> str:
        parameters = ", ".join(f"{key}={value.default:g}" for key, value in each.parameters.items())
        return f"{each.doc}[dim] ({parameters})" if parameters else each.doc

    return ["scenario", "clients", "test rows", "what it is (parameters)"], [
        [name, str(each.clients), each.test_mode, described(each)] for name, each in SCENARIOS.items()
    ] + [[name, "", "", what] for name, what in _added(SCENARIOS, 2)]


def _models() -> Listed:
    return ["model", "what it is"], [
        *([name, (make.__doc__ or "").splitlines()[0]] for name, make in MODELS.items()), *_added(MODELS, 2)]


def _recipes() -> Listed:
    files = sorted(Path("recipes").glob("*.toml"))
    if not files:
        raise UmbelError("Recipes are looked for in the folder 'recipes', and there are none here.")
    first = {path: read_text(path, follow=True).split("\n")[0] for path in files}
    return ["recipe", "what it is"], [[str(path), line.lstrip("# ")] for path, line in first.items()]


def _tables() -> Listed:
    from umbel.reproduce.papers import names
    from umbel.reproduce.table import load

    def row(table: "PaperTable") -> list[str]:
        printed = sum(figure.value is not None for figure in table.printed.values())
        return [table.name, table.title, str(len(table.cells)), str(printed) if printed else "none"]

    return ["table", "what it is", "cells", "printed figures"], [row(load(name)) for name in names()]


_LISTS: dict[str, Callable[[], Listed]] = {
    "methods": _methods, "data": _data, "scenarios": _scenarios, "models": _models, "recipes": _recipes,
    "tables": _tables,
}


@app.command("list")
def list_(
    what: Annotated[str, typer.Argument(hidden=True, autocompletion=lambda: list(_LISTS))],
) -> None:
    """Show what there is. WHAT is methods, data, scenarios, models, recipes or tables."""
    if what not in _LISTS:
        raise unknown("list of", what, _LISTS)
    headers, rows = _LISTS[what]()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for header in headers:
        table.add_column(header, overflow="fold")
    for row in rows:
        table.add_row(*row)
    console.print(table, highlight=False)
    if what == "data":
        console.print(Padding(Text("\n".join(["Terms", *_terms()]), style="dim"), (1, 0, 0, 1)))
    if what == "methods":
        from umbel.runs.recipe import common_settings

        common = f"All have as well: {', '.join(common_settings())}."
        told = ("Meanings: by what groups are found that look alike and differ only in what labels mean; empty: by"
                " nothing.")
        console.print(Padding(Text(f"{told}\n{common}", style="dim"), (0, 0, 0, 1)))
