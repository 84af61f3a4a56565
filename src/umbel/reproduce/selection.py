"""Which cells of a table are to be run here: those asked for, with the data at hand, a run for each seed."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from umbel.data import sources
from umbel.data.partition import OFFSETS
from umbel.errors import UmbelError
from umbel.reproduce.cells import Job, folder_of
from umbel.reproduce.table import Table, TableCell


@dataclass(frozen=True)
class AtHand:
    """The data sets of a table on this machine."""

    parts: Mapping[str, str] = field(default_factory=dict)  # set -> "20,000 of 50,000"
    missing: Mapping[str, str] = field(default_factory=dict)  # set -> the sentence that says how to get it

    @classmethod
    def look(cls, names: Sequence[str], data_dir: Path | None) -> "AtHand":
        """Load each set once, to know whether it is there and whole."""
        parts, missing = {}, {}
        for name in names:
            try:
                part = sources.open_dataset(name, data_dir).part
            except UmbelError as error:
                missing[name] = str(error)
                continue
            if part:
                parts[name] = part
        return cls(parts, missing)


def sets_of(table: Table, cell: TableCell) -> list[str]:
    """The data sets that a cell needs."""
    if table.compute:
        return [word for word in cell.column.replace("|", " ").split() if word in sources.DATASETS]
    data = table.experiment(cell).resolved().data
    return [data] if data else list(OFFSETS)


def selected(table: Table, only: Sequence[str]) -> list[TableCell]:
    """The cells that fit one of the texts: all words of a text are words of the cell or, failing that, parts of it.

    Upper and lower case are the same.
    """
    if not only:
        return table.cells
    known = {word for cell in table.cells for word in _words(cell)}
    fitting = [cell for cell in table.cells if any(_fits(cell, text.lower(), known) for text in only)]
    if not fitting:
        names = "; ".join(", ".join(each) for each in (table.rows, table.columns))
        raise UmbelError(f"There is no cell of {table.name} with '{' or '.join(only)}'. Its rows and columns: {names}.")
    return fitting


def _words(cell: TableCell) -> set[str]:
    """The words of a cell's row and column and both names whole, in lower case."""
    row, column = cell.row.lower(), cell.column.lower()
    return {*row.split(), *column.split(), row, column}


def _fits(cell: TableCell, text: str, known: set[str]) -> bool:
    """Whether a text in lower case means this cell; `known` are the words of all cells."""
    words, names = _words(cell), f"{cell.row} {cell.column}".lower()
    if text in known:
        return text in words
    return all(word in words if word in known else word in names for word in text.split())


def skipped(table: Table, cell: TableCell, at_hand: AtHand) -> str:
    """Why a cell cannot be run with the data at hand; empty = it can."""
    for name in sets_of(table, cell):
        if name in at_hand.missing:
            return at_hand.missing[name]
        if table.whole and name in at_hand.parts:
            return f"{name} is here as a part ({at_hand.parts[name]}), too small for {table.whole}."
    return ""


def jobs(table: Table, out: Path, *, seeds: int, rounds: int | None, device: str,
         at_hand: AtHand) -> Iterator[Job]:
    """One run for each cell and seed, seed by seed, so that a stopped table has whole columns."""
    for seed in range(seeds):
        for cell in table.cells:
            experiment = table.experiment(cell, seed=seed, rounds=rounds, device=device, parts=at_hand.parts)
            yield Job(cell, seed, experiment, folder_of(out, cell, experiment))
