"""Ours beside theirs: one line a figure, with the difference, the verdict, and the reason where it is known."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from umbel.files import write_atomically
from umbel.reproduce import cost
from umbel.reproduce.measures import MEASURES, Finished
from umbel.reproduce.selection import sets_of
from umbel.reproduce.table import Cell, Printed, Table
from umbel.runs.checkpoint import write_json

NOT_RUN = "not run"


@dataclass
class Outcome:
    """What became of a cell: numbers by measure, one a seed, and a sentence if there are none."""

    values: dict[str, list[float | None]] = field(default_factory=dict)
    over_clients: dict[str, float | None] = field(default_factory=dict)  # spread, where there is one seed
    status: str = NOT_RUN
    fewer_rounds: str = ""  # "50 of 200"
    fewer_seeds: str = ""  # "1 of 3"

    @classmethod
    def of(cls, table: Table, cell: Cell, runs: Sequence[Finished]) -> "Outcome":
        """Read the finished runs of a cell."""
        found = cls(status="")
        for measure in table.measures:
            how = MEASURES[measure]
            if how.of is None or (cell, measure) not in table.printed:
                continue
            found.values[measure] = [how.of(run) for run in runs]
            if how.spread and len(runs) == 1:
                found.over_clients[measure] = how.spread(runs[0])
        return found


@dataclass(frozen=True)
class Line:
    """One figure."""

    row: str
    column: str
    measure: str
    ours: float | None
    ours_spread: float | None
    ours_over: str  # "3 seeds", "clients", or empty
    theirs: float | None
    theirs_spread: float | None
    theirs_dash: bool
    difference: float | None
    verdict: str  # pass, fail, not run, skipped, failed; empty where nothing can be judged
    why: tuple[str, ...]


def lines(table: Table, outcomes: Mapping[Cell, Outcome], parts: Mapping[str, str]) -> list[Line]:
    """The whole table, cells that were not run among them."""
    return [_line(table, cell, measure, printed, outcomes.get(cell, Outcome()), parts)
            for cell in table.cells for measure in table.measures
            if (printed := table.printed.get((cell, measure))) is not None]


def _line(table: Table, cell: Cell, measure: str, printed: Printed, outcome: Outcome,
          parts: Mapping[str, str]) -> Line:
    values = outcome.values.get(measure)
    if measure == "formula":
        values = [_formula(table, cell)]
    if values is None:
        kind, _, sentence = outcome.status.partition(": ")
        return Line(cell.row, cell.column, measure, None, None, "", printed.value, printed.spread, printed.dash, None,
                    kind or NOT_RUN, (sentence,) if sentence else ())
    reached = [value for value in values if value is not None]
    ours = mean(reached) if reached and len(reached) == len(values) else None
    spread = stdev(reached) if ours is not None and len(values) > 1 else outcome.over_clients.get(measure)
    over = "" if spread is None else f"{len(values)} seeds" if len(values) > 1 else "clients"
    difference = ours - printed.value if ours is not None and printed.value is not None else None
    verdict = _verdict(ours, printed, difference, table.band.get(measure))
    why = _reasons(table, cell, measure, outcome, parts) if verdict == "fail" else ()
    return Line(cell.row, cell.column, measure, ours, spread, over, printed.value, printed.spread, printed.dash,
                difference, verdict, why)


def _formula(table: Table, cell: Cell) -> float:
    """PACFL's megabits from the rounds that fit what is printed."""
    rounds, experiment = table.fitted[cell].value, table.experiment(cell)
    assert rounds is not None
    return cost.megabits(experiment.method, int(rounds), experiment.model or "lenet5", experiment.fraction)


def allowed(band: Any, printed: float) -> float:
    """The width of a band: a number, "10%" of what is printed, or the largest of a list of these."""
    if isinstance(band, list):
        return max(allowed(each, printed) for each in band)
    if isinstance(band, str):
        return abs(printed) * float(band.rstrip("%")) / 100
    return float(band)


def _verdict(ours: float | None, printed: Printed, difference: float | None, band: Any) -> str:
    if printed.dash:
        return "pass" if ours is None else "fail"
    if printed.value is None or band is None:
        return ""
    return "pass" if difference is not None and abs(difference) <= allowed(band, printed.value) + 1e-9 else "fail"


def _reasons(table: Table, cell: Cell, measure: str, outcome: Outcome, parts: Mapping[str, str]) -> tuple[str, ...]:
    """Known causes: the paper's own, a part of the data, fewer rounds."""
    known = [each.text for each in table.why if each.fits(cell, measure)]
    known += [f"Only a part of {name}: {parts[name]}." for name in sets_of(table, cell) if name in parts]
    known += [f"{outcome.fewer_rounds} rounds."] if outcome.fewer_rounds else []
    return tuple(known)


def bands(table: Table) -> str:
    """The rule by which lines pass, in words."""
    def told(band: Any) -> str:
        return " or ".join(map(told, band)) if isinstance(band, list) else str(band)

    judged = {measure for (_, measure), figure in table.printed.items() if figure.dash or figure.value is not None}
    same: dict[str, list[str]] = {}
    for name in table.measures:
        if name in judged and name in table.band:
            same.setdefault(told(table.band[name]), []).append(MEASURES[name].words)
    return "; ".join(f"{', '.join(words)} within ±{band}" for band, words in same.items())


def head(table: Table, lines: Sequence[Line], outcomes: Mapping[Cell, Outcome], parts: Mapping[str, str]) -> list[str]:
    """What a reader must know before the first line."""
    over = sorted({line.ours_over for line in lines if line.ours_over})
    rounds = sorted({each.fewer_rounds for each in outcomes.values() if each.fewer_rounds})
    seeds = sorted({each.fewer_seeds for each in outcomes.values() if each.fewer_seeds})
    told = [f"Data: only a part of {name}, {part} training rows." for name, part in parts.items()]
    told += [f"Rounds: {', '.join(rounds)} of the paper's."] if rounds else []
    told += [f"Seeds: {', '.join(seeds)} in some cells."] if seeds else []
    printed = table.over and any(line.theirs_spread is not None for line in lines)
    spread = [f"printed over {table.over}"] if printed else []
    spread += [f"ours over {' or '.join(over)}"] if over else []
    told += [f"±: {', '.join(spread)}."] if spread else []
    told += [f"Pass: {bands(table)}."] if bands(table) else ["Nothing here can be judged."]
    return [*told, *table.notes]


def number(value: float | None, digits: int, dash: str = "–") -> str:
    """A figure, or a dash."""
    return dash if value is None else f"{value:.{digits}f}"


def texts(line: Line) -> tuple[str, str, str]:
    """Ours, theirs and the difference, as people read them."""
    digits = MEASURES[line.measure].digits
    never = "never" if line.verdict in ("pass", "fail") else "–"
    ours = number(line.ours, digits, never)
    ours += f" ± {line.ours_spread:.{digits}f}" if line.ours_spread is not None else ""
    theirs = number(line.theirs, digits, "never" if line.theirs_dash else "–")
    theirs += f" ± {line.theirs_spread:.{digits}f}" if line.theirs_spread is not None else ""
    return ours, theirs, "" if line.difference is None else f"{line.difference:+.{digits}f}"


def footnotes(lines: Sequence[Line]) -> dict[str, int]:
    """All reasons, numbered as they come."""
    found: dict[str, int] = {}
    for line in lines:
        for reason in line.why:
            found.setdefault(reason, len(found) + 1)
    return found


def counted(lines: Sequence[Line]) -> str:
    """How many of each verdict."""
    order = ("pass", "fail", "skipped", "failed", NOT_RUN)
    counts = {name: sum(line.verdict == name for line in lines) for name in order}
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count)


def write(out: Path, table: Table, made: Sequence[Line], told: Sequence[str], facts: Mapping[str, Any]) -> None:
    """table.json, table.csv and table.md beside the runs, each whole or not at all."""
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "table.json", {"table": table.name, "paper": table.paper, "title": table.title, "head": list(told),
                                    **facts, "lines": [asdict(line) for line in made]})
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(Line.__dataclass_fields__))
    writer.writeheader()
    writer.writerows({**asdict(line), "why": " ".join(line.why)} for line in made)
    write_atomically(out / "table.csv", text.getvalue().encode())
    write_atomically(out / "table.md", _markdown(table, made, told).encode())


def _markdown(table: Table, made: Sequence[Line], told: Sequence[str]) -> str:
    notes = footnotes(made)
    rows = [
        f"| {line.column} | {line.row} | {MEASURES[line.measure].words} | {' | '.join(texts(line))} |"
        f" {' '.join([line.verdict, *(f'[{notes[reason]}]' for reason in line.why)])} |".replace("|  |", "| |")
        for line in made
    ]
    return "\n".join([
        f"# {table.name}: {table.title}", "", table.paper, "", *told, "",
        "| column | row | measure | ours | theirs | difference | verdict |", "|---|---|---|---|---|---|---|", *rows, "",
        *(f"{k}. {reason}" for reason, k in notes.items()), f"\n{counted(made)}.", "",
    ])
