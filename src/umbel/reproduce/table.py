"""A paper's tables as data: which experiment each cell is, and what the paper prints there.

A row or a column is named by words, and its words make its experiment: a method, a data set, `name=value` for a
setting, or a word that the paper's file defines. `flag beta=0.1` in the column `cifar10 30%` is all there is to say.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from umbel.algorithms import ALGORITHMS
from umbel.data.sources import DATASETS
from umbel.errors import UmbelError, unknown
from umbel.reproduce.papers import COMMON, PAPERS, names, read
from umbel.runs.compare import own_settings
from umbel.runs.experiment import Experiment
from umbel.runs.recipe import read_toml

READING = ("judge", "phase")  # what a word may say beside fields of an Experiment: how its runs are read


class Printed(NamedTuple):
    """One figure of a paper."""

    value: float | None = None  # None: nothing is printed, or a dash
    spread: float | None = None
    dash: bool = False  # printed as "--": the target was never reached

    @classmethod
    def read(cls, text: str) -> "Printed":
        """`83.66±1.70`, `83.66`, `--` for a dash, `?` where a figure has a curve and no number."""
        if text in ("?", "--"):
            return cls(dash=text == "--")
        value, _, spread = text.partition("±")
        return cls(float(value), float(spread) if spread else None)


class TableCell(NamedTuple):
    """A place in a table."""

    row: str
    column: str

    @property
    def name(self) -> str:
        """What people see: row and column."""
        return f"{self.row}, {self.column}"


class Reason(NamedTuple):
    """Why some figures differ, where it is known."""

    text: str
    of: tuple[str, ...] = ("",)  # it fits where all words of one of these are words of row, column or measure

    def fits(self, cell: TableCell, measure: str) -> bool:
        """Whether it is a reason for this figure."""
        words = {*cell.row.split(), *cell.column.split(), measure}
        return any(words.issuperset(text.split()) for text in self.of)


@dataclass(frozen=True)
class Table:
    """One table or figure of a paper."""

    name: str  # comparative/table2
    paper: str
    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    printed: Mapping[tuple[TableCell, str], Printed]  # by cell and measure, in the order of the page
    layers: tuple[Mapping[str, Any], ...]  # the paper's protocol, then the table's
    words: Mapping[str, Mapping[str, Any]]
    over: str = ""  # what the printed ± is over
    band: Mapping[str, Any] = field(default_factory=dict)  # by measure: how far ours may be from theirs
    notes: tuple[str, ...] = ()
    why: tuple[Reason, ...] = ()
    compute: str = ""  # name of a function that stands in for runs
    whole: str = ""  # what a part of a data set is too small for
    part: Mapping[str, str] = field(default_factory=dict)  # scenario parameters for a part of a data set
    targets: Mapping[str, float] = field(default_factory=dict)  # score to reach, by column, in per cent
    fitted: Mapping[TableCell, Printed] = field(default_factory=dict)  # rounds that explain what is printed

    @property
    def cells(self) -> list[TableCell]:
        """All places, column by column."""
        return [TableCell(row, column) for column, row in product(self.columns, self.rows)
                if any((TableCell(row, column), measure) in self.printed for measure in self.measures)]

    @property
    def measures(self) -> list[str]:
        """What is measured in its cells."""
        return list(dict.fromkeys(measure for _, measure in self.printed))

    def _of(self, cell: TableCell) -> Iterator[Mapping[str, Any]]:
        """The layers of a cell's experiment, the later over the earlier."""
        yield from self.layers
        for word in f"{cell.column} {cell.row}".split():
            yield self._word(word)

    def _word(self, word: str) -> dict[str, Any]:
        name, sign, value = word.partition("=")
        known: dict[str, Any] = {}
        if word in ALGORITHMS:
            known = {"method": word}
        elif word in DATASETS:
            known = {"data": word}
        elif sign and word not in self.words:
            known = {"settings": {name: value}}
        elif word not in self.words:
            raise unknown(f"word in {self.name} named", word, [*self.words, *ALGORITHMS, *DATASETS])
        return {**known, **self.words.get(word, {})}

    def reading(self, cell: TableCell) -> dict[str, str]:
        """How the runs of a cell are read: `judge`, which score; `phase`, which part of a round."""
        return {name: layer[name] for layer in self._of(cell) for name in READING if name in layer}

    def experiment(self, cell: TableCell, *, seed: int = 0, rounds: int | None = None, device: str = "auto",
                   parts: Mapping[str, str] | None = None) -> Experiment:
        """The recipe of a cell. `seed` is added to the paper's, `rounds` is an upper limit.

        `parts` are the data sets that are here only in part: their scenarios get the table's smaller numbers.
        """
        choices: dict[str, Any] = {}
        for layer in self._of(cell):
            choices |= {name: value for name, value in layer.items() if name not in (*READING, "settings")}
        settings: dict[str, Any] = {}
        for layer in self._of(cell):
            settings |= own_settings(choices["method"], layer.get("settings", {}))
        choices["seed"] = choices.get("seed", 0) + seed
        choices["rounds"] = min(choices["rounds"], rounds or choices["rounds"])
        smaller = self.part.get(choices.get("data", ""), "") if choices.get("data") in (parts or {}) else ""
        if smaller:
            choices["scenario"] += ("," if ":" in choices["scenario"] else ":") + smaller
        return Experiment(**choices, device=device, settings=settings)


def load(name: str) -> Table:
    """A table by its name, PAPER/TABLE; PAPER may be a file of one's own, written as those in `papers/`."""
    paper, _, table = name.rpartition("/")
    content = read_toml(Path(paper)) if paper.endswith(".toml") else read(paper) if paper in PAPERS else {}
    if table not in content or table in COMMON:
        raise unknown("table", name, [f"{paper}/{each}" for each in content if each not in COMMON] or names())
    return _table(name, content, content[table])


def _table(name: str, paper: Mapping[str, Any], given: Mapping[str, Any]) -> Table:
    if not isinstance(given, Mapping) or not all(isinstance(each.get("title"), str) for each in (paper, given)):
        raise UmbelError(f"A table has a title, and its file has one. At least one of them is missing for {name}.")
    known = {each.name for each in fields(Table)} | {"protocol", "own"}
    for key in given:
        if key not in known:
            raise unknown(f"key of {name} named", key, known)
    printed = {(cell, measure): figure for measure, text in given.get("printed", {}).items()
               for cell, figure in block(text).items()}
    rows = given.get("rows") or list(dict.fromkeys(cell.row for cell, _ in printed))
    columns = given.get("columns") or list(dict.fromkeys(cell.column for cell, _ in printed))
    printed |= {(TableCell(row, column), measure): Printed()
                for measure in given.get("own", ()) for row, column in product(rows, columns)}
    fitted = {cell: rounds for cell, rounds in block(given.get("fitted", "")).items() if rounds.value}
    general = [each for each in _reasons(paper) if any(each.fits(*place) for place in printed)]
    printed |= {(cell, "formula"): printed[cell, "megabits"] for cell in fitted}
    return Table(
        name, paper["title"], given["title"], tuple(rows), tuple(columns), printed,
        (paper.get("protocol", {}), given.get("protocol", {})), paper.get("words", {}) | given.get("words", {}),
        given.get("over", paper.get("over", "")), paper.get("band", {}) | given.get("band", {}),
        tuple(given.get("notes", ())),
        (*general, *_reasons(given)),
        given.get("compute", ""), given.get("whole", ""), given.get("part", {}), given.get("targets", {}),
        fitted,
    )


def _reasons(given: Mapping[str, Any]) -> list[Reason]:
    return [Reason(each["text"], tuple(each.get("of", [""]))) for each in given.get("why", ())]


def block(text: str | list[str]) -> dict[TableCell, Printed]:
    """Figures as they stand on the page: names of columns above, name of the row first, two spaces between."""
    if isinstance(text, list):
        return {cell: figure for each in text for cell, figure in block(each).items()}
    cells: dict[TableCell, Printed] = {}
    head, *lines = [re.split(r"\s{2,}", line.strip()) for line in text.strip().splitlines()] or [[]]
    for row, *figures in lines:
        if len(figures) != len(head):
            raise UmbelError(f"A row of a table needs {len(head)} figures. Got {len(figures)} in '{row}' instead.")
        cells |= {TableCell(row, column): Printed.read(figure) for column, figure in zip(head, figures, strict=True)}
    return cells
