"""What the page is made of: figures, and tables that sort."""

from collections.abc import Sequence
from html import escape
from typing import Any

from umbel.pages import plots

WORDS = {"cluster_model": "cluster's model", "fine_tuned": "fine-tuned", "last_local": "client's own last"}


class Book:
    """What the page's script gets beside the text: figures and dendrograms by name."""

    def __init__(self) -> None:
        self.figures: dict[str, plots.Figure] = {}
        self.trees: dict[str, dict[str, Any]] = {}

    def figure(self, title: str, figure: plots.Figure | None, caption: str, wide: bool = False, mark: str = "") -> str:
        """One figure with its title and what to see in it (HTML); nothing where there is nothing to draw."""
        if figure is None:
            return ""
        name = f"f{len(self.figures)}"
        self.figures[name] = figure
        height = figure["layout"]["height"]
        return (
            f'<figure{_class(wide)}><h3>{escape(title)}</h3><div class="plot" data-figure="{name}" {mark} role="img"'
            f' aria-label="{escape(title)}" style="min-height:{height}px"></div>'
            f"<figcaption>{caption}</figcaption></figure>"
        )


class Cell:
    """What a table shows, and what it sorts by; None is shown as a dash and sorts last."""

    def __init__(self, text: str | None, value: object = None) -> None:
        self.text = "–" if text is None else text
        self.value = "" if text is None else text if value is None else value


def number(value: float | None, digits: int = 2, factor: float = 1.0) -> Cell:
    """A number that sorts by its value, not by its digits."""
    return Cell(None) if value is None else Cell(f"{factor * value:.{digits}f}", factor * value)


def table(heads: Sequence[str], rows: Sequence[Sequence[Cell]], caption: str, text_columns: int = 1) -> str:
    """A table that sorts; the first columns hold text."""
    head = "".join(
        f'<th scope="col"{_text(k, text_columns)}><button type="button">{escape(name)}</button></th>'
        for k, name in enumerate(heads)
    )
    lines = []
    for row in rows:
        first, *rest = [f'data-value="{escape(str(cell.value))}">{escape(cell.text)}' for cell in row]
        others = "".join(f"<td{_left(k + 1, text_columns)} {cell}</td>" for k, cell in enumerate(rest))
        lines.append(f'<tr><th scope="row" class="left" {first}</th>{others}</tr>')
    label = escape(caption)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{label}"><table class="sortable">'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def _text(k: int, text_columns: int) -> str:
    return ' class="left"' if k < text_columns else ' data-first="down"'


def _left(k: int, text_columns: int) -> str:
    return ' class="left"' if k < text_columns else ""


def _class(wide: bool) -> str:
    return ' class="wide"' if wide else ""
