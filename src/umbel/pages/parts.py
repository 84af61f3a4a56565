"""What the page is made of: figures, and tables that sort. Plain text here; `templates/parts.html` makes HTML of it."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from umbel.nets.objective import Metric
from umbel.pages import plots

START_NAMES = {"cluster_model": "cluster's model", "fine_tuned": "fine-tuned", "last_local": "last local model"}


class FigureBox(NamedTuple):
    """The place of one figure in the page: its name in the script's data, its title, and what to see in it."""

    name: str
    title: str
    caption: str
    height: int
    wide: bool
    matrix: bool  # whether page.js outlines clusters in it, as the cut moves
    choices: Sequence["Choice"] = ()  # above it: which of its figures is shown
    group: str = ""  # of figures that show the same choice


class Choice(NamedTuple):
    """Something to be chosen from above a figure."""

    name: str
    options: Sequence[str]


class Drawings:
    """What page.js draws: figures and dendrograms, by the names that the page's elements refer to."""

    def __init__(self) -> None:
        self.figures: dict[str, plots.Figure] = {}
        self.trees: dict[str, dict[str, Any]] = {}

    def figure(self, title: str, figure: plots.Figure | None, caption: str, wide: bool = False,
               matrix: bool = False) -> list[FigureBox]:
        """A place for one figure; none where there is nothing to draw."""
        if figure is None:
            return []
        name = f"f{len(self.figures)}"
        self.figures[name] = figure
        return [FigureBox(name, title, caption, figure["layout"]["height"], wide, matrix)]

    def chosen(self, title: str, figures: Mapping[str, plots.Figure], caption: str, group: str,
               choices: Sequence[Choice] = ()) -> FigureBox:
        """A place that shows one figure of several at a time, the first at first; they are called "0-2" by the numbers
        of the options. Places of one group change together, wherever the choices stand.
        """
        name = f"f{len(self.figures)}"
        self.figures |= {f"{name}-{key}": figure for key, figure in figures.items()}
        first = next(iter(figures))
        height = figures[first]["layout"]["height"]
        return FigureBox(f"{name}-{first}", title, caption, height, False, False, choices, group)


class TableCell:
    """What a table shows, and what it sorts by; None is shown as a dash and sorts last."""

    def __init__(self, text: str | None, value: object = None) -> None:
        self.text = "–" if text is None else text
        self.value = "" if text is None else text if value is None else value


class Table(NamedTuple):
    """A table that sorts; the first column is text."""

    name: str
    heads: Sequence[str]
    rows: Sequence[Sequence[TableCell]]
    note: str = ""
    rising: Sequence[str] = ()  # heads of columns whose least value is the best: it comes first at the first click


def scored(value: float | None, metric: Metric, digits: int = 1) -> TableCell:
    """A score that sorts by its value."""
    return TableCell(None) if value is None else TableCell(metric.shown(value, digits), value)


def number(value: float | None, digits: int = 2, factor: float = 1.0) -> TableCell:
    """A number that sorts by its value, not by its digits."""
    return TableCell(None) if value is None else TableCell(f"{factor * value:.{digits}f}", factor * value)
