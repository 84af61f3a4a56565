"""Ours beside theirs: each figure with the difference, the verdict, and the reason where it is known."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from umbel.files import make_folder, write_atomically, write_json
from umbel.reproduce import cost
from umbel.reproduce.measures import MEASURES, Finished
from umbel.reproduce.selection import sets_of
from umbel.reproduce.table import Printed, Table, TableCell

NOT_RUN = "not run"


@dataclass
class Outcome:
    """The result of a cell: numbers by measure, one a seed, and a sentence if there are none."""

    values: dict[str, list[float | None]] = field(default_factory=dict)
    over_clients: dict[str, float | None] = field(default_factory=dict)  # spread, where there is one seed
    status: str = NOT_RUN
    fewer_rounds: str = ""  # "50 of 200"
    fewer_seeds: str = ""  # "1 of 3"

    @classmethod
    def of(cls, table: Table, cell: TableCell, runs: Sequence[Finished]) -> "Outcome":
        """Read the finished runs of a cell."""
        outcome = cls(status="")
        for measure in table.measures:
            how = MEASURES[measure]
            if how.of is None or (cell, measure) not in table.printed:
                continue
            outcome.values[measure] = [how.of(run) for run in runs]
            if how.spread and len(runs) == 1:
                outcome.over_clients[measure] = how.spread(runs[0])
        return outcome


@dataclass(frozen=True)
class Comparison:
    """One figure: ours, theirs, and how far they are apart. Its fields are the columns of table.csv."""

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


def comparisons(table: Table, outcomes: Mapping[TableCell, Outcome], parts: Mapping[str, str]) -> list[Comparison]:
    """The whole table, cells that were not run among them."""
    return [_compared(table, cell, measure, printed, outcomes.get(cell, Outcome()), parts)
            for cell in table.cells for measure in table.measures
            if (printed := table.printed.get((cell, measure))) is not None]


def _compared(table: Table, cell: TableCell, measure: str, printed: Printed, outcome: Outcome,
              parts: Mapping[str, str]) -> Comparison:
    values = outcome.values.get(measure)
    if measure == "formula":
        values = [_formula(table, cell)]
    if values is None:
        kind, _, sentence = outcome.status.partition(": ")
        return Comparison(*cell, measure, None, None, "", printed.value, printed.spread, printed.dash, None,
                          kind or NOT_RUN, (sentence,) if sentence else ())
    reached = [value for value in values if value is not None]
    ours = mean(reached) if reached and len(reached) == len(values) else None
    spread = stdev(reached) if ours is not None and len(values) > 1 else outcome.over_clients.get(measure)
    over = "" if spread is None else f"{len(values)} seeds" if len(values) > 1 else "clients"
    difference = ours - printed.value if ours is not None and printed.value is not None else None
    verdict = _verdict(ours, printed, difference, table.band.get(measure))
    why = _reasons(table, cell, measure, outcome, parts) if verdict == "fail" else ()
    return Comparison(*cell, measure, ours, spread, over, printed.value, printed.spread, printed.dash, difference,
                      verdict, why)


def _formula(table: Table, cell: TableCell) -> float:
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


def _reasons(table: Table, cell: TableCell, measure: str, outcome: Outcome,
             parts: Mapping[str, str]) -> tuple[str, ...]:
    """Known causes: the paper's own, a part of the data, fewer rounds."""
    known = [each.text for each in table.why if each.fits(cell, measure)]
    known += [f"Only a part of {name}: {parts[name]}." for name in sets_of(table, cell) if name in parts]
    known += [f"{outcome.fewer_rounds} rounds."] if outcome.fewer_rounds else []
    return tuple(known)


def bands(table: Table) -> str:
    """The rule by which figures pass, in words."""
    def in_words(band: Any) -> str:
        return " or ".join(map(in_words, band)) if isinstance(band, list) else str(band)

    judged = {measure for (_, measure), figure in table.printed.items() if figure.dash or figure.value is not None}
    same: dict[str, list[str]] = {}
    for name in table.measures:
        if name in judged and name in table.band:
            same.setdefault(in_words(table.band[name]), []).append(MEASURES[name].words)
    return "; ".join(f"{', '.join(words)} within ±{band}" for band, words in same.items())


def head(table: Table, made: Sequence[Comparison], outcomes: Mapping[TableCell, Outcome],
         parts: Mapping[str, str]) -> list[str]:
    """What a reader must know before the first figure."""
    over = sorted({each.ours_over for each in made if each.ours_over})
    rounds = sorted({each.fewer_rounds for each in outcomes.values() if each.fewer_rounds})
    seeds = sorted({each.fewer_seeds for each in outcomes.values() if each.fewer_seeds})
    sentences = [f"Data: only a part of {name}, {part} training rows." for name, part in parts.items()]
    sentences += [f"Rounds: {', '.join(rounds)} of the paper's."] if rounds else []
    sentences += [f"Seeds: {', '.join(seeds)} in some cells."] if seeds else []
    printed = table.over and any(each.theirs_spread is not None for each in made)
    spread = [f"printed over {table.over}"] if printed else []
    spread += [f"ours over {' or '.join(over)}"] if over else []
    sentences += [f"±: {', '.join(spread)}."] if spread else []
    sentences += [f"Pass: {bands(table)}."] if bands(table) else ["Nothing here can be judged."]
    return [*sentences, *table.notes]


def number(value: float | None, digits: int, dash: str = "–") -> str:
    """A figure, or a dash."""
    return dash if value is None else f"{value:.{digits}f}"


def texts(figure: Comparison) -> tuple[str, str, str]:
    """Ours, theirs and the difference, as people read them."""
    digits = MEASURES[figure.measure].digits
    never = "never" if figure.verdict in ("pass", "fail") else "–"
    ours = number(figure.ours, digits, never)
    ours += f" ± {figure.ours_spread:.{digits}f}" if figure.ours_spread is not None else ""
    theirs = number(figure.theirs, digits, "never" if figure.theirs_dash else "–")
    theirs += f" ± {figure.theirs_spread:.{digits}f}" if figure.theirs_spread is not None else ""
    return ours, theirs, "" if figure.difference is None else f"{figure.difference:+.{digits}f}"


def footnotes(made: Sequence[Comparison]) -> dict[str, int]:
    """All reasons, numbered from 1 in the order in which they are first needed."""
    numbers: dict[str, int] = {}
    for each in made:
        for reason in each.why:
            numbers.setdefault(reason, len(numbers) + 1)
    return numbers


def counted(made: Sequence[Comparison]) -> str:
    """How many of each verdict."""
    order = ("pass", "fail", "skipped", "failed", NOT_RUN)
    counts = {name: sum(each.verdict == name for each in made) for name in order}
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count)


def write(out: Path, table: Table, made: Sequence[Comparison], sentences: Sequence[str],
          facts: Mapping[str, Any]) -> None:
    """table.json, table.csv and table.md beside the runs, each whole or not at all."""
    make_folder(out)
    write_json(out / "table.json", {"table": table.name, "paper": table.paper, "title": table.title,
                                    "head": list(sentences), **facts, "lines": [asdict(each) for each in made]})
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(Comparison.__dataclass_fields__))
    writer.writeheader()
    writer.writerows({**asdict(each), "why": " ".join(each.why)} for each in made)
    write_atomically(out / "table.csv", text.getvalue().encode())
    write_atomically(out / "table.md", _markdown(table, made, sentences).encode())


def _markdown(table: Table, made: Sequence[Comparison], sentences: Sequence[str]) -> str:
    notes = footnotes(made)
    rows = [
        f"| {each.column} | {each.row} | {MEASURES[each.measure].words} | {' | '.join(texts(each))} |"
        f" {' '.join([each.verdict, *(f'[{notes[reason]}]' for reason in each.why)])} |".replace("|  |", "| |")
        for each in made
    ]
    return "\n".join([
        f"# {table.name}: {table.title}", "", table.paper, "", *sentences, "",
        "| column | row | measure | ours | theirs | difference | verdict |", "|---|---|---|---|---|---|---|", *rows, "",
        *(f"{k}. {reason}" for reason, k in notes.items()), f"\n{counted(made)}.", "",
    ])
