"""One self-contained HTML file: no server, no network, no framework but the drawing library inside it.

Everything from a run folder is escaped where it meets HTML, and data travels as JSON that cannot end its script. A
policy in the page forbids the browser to load anything from anywhere.
"""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from umbel.errors import UmbelError
from umbel.pages import plots, views
from umbel.pages.load import Run
from umbel.pages.panels import compared, each_run
from umbel.pages.parts import Book
from umbel.pages.summary import summary, title
from umbel.runs.result import versions

POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
MARK = (  # an umbel: flowers on stalks from one centre
    '<svg viewBox="0 0 32 32" aria-hidden="true" fill="none" stroke="currentColor" stroke-width="1.6">'
    '<path d="M16 30V19M16 19L6 9M16 19L11 6M16 19V5M16 19l5-13M16 19L26 9"/><g stroke="none">'
    '<circle cx="5.5" cy="8.5" r="2.8" fill="var(--c0)"/><circle cx="10.7" cy="4.8" r="2.8" fill="var(--c2)"/>'
    '<circle cx="16" cy="3.6" r="2.8" fill="var(--c4)"/><circle cx="21.3" cy="4.8" r="2.8" fill="var(--c3)"/>'
    '<circle cx="26.5" cy="8.5" r="2.8" fill="var(--c1)"/></g></svg>'
)


def write(runs: Sequence[Run]) -> str:
    """The whole page."""
    book, found = Book(), views.lines(runs)
    names = views.run_names(found)
    ordered = [run for line in found for run in line.runs]
    body = (
        summary(found, names) + compared(book, found) + each_run(book, ordered, names)
        + f"<footer>Written by umbel {escape(versions()['umbel'])} on"
        f" {datetime.now(UTC):%Y-%m-%d %H:%M} UTC. This file needs no network.</footer>"
    )
    name = title(found)
    several = len(found) > 1 or len(ordered) > 1
    links = [("summary", "Summary"), ("compared", "Compared" if several else "Training"),
             ("runs", "Why these clusters")]
    nav = "".join(f'<a href="#{place}">{words}</a>' for place, words in links)
    data = {"figures": book.figures, "trees": book.trees, "largest": plots.LARGEST}
    return (
        '<!doctype html>\n<html lang="en" data-theme="light"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(name)} – umbel</title><link rel=\"icon\" href=\"data:,\"><style>{_asset('page.css')}</style>"
        '<script>if (matchMedia("(prefers-color-scheme: dark)").matches)'
        ' document.documentElement.dataset.theme = "dark"</script></head><body>'
        '<a class="skip" href="#summary">To the summary</a>'
        f'<header class="bar"><div><span class="brand">{MARK}umbel</span><nav aria-label="Sections">{nav}</nav>'
        '<button class="plain" id="theme" type="button">Dark</button></div></header>'
        f'<main id="summary"><h1>{escape(name)}</h1>{body}</main>'
        "<noscript><p>The figures of this page are drawn by its script.</p></noscript>"
        f'<script type="application/json" id="data">{embedded(data)}</script>'
        f"<script>{_asset('page.js')}</script><script>{drawing_library()}</script></body></html>\n"
    )


def embedded(data: Any) -> str:
    """JSON that may stand inside a script element, whatever its texts are."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"), ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def drawing_library() -> str:
    """plotly.js, as Plotly's Python package brings it; the package itself, slow to import, is not loaded."""
    found = find_spec("plotly")
    if found is None or not found.submodule_search_locations:
        raise UmbelError("A report is drawn by Plotly, which is not installed: pip install 'umbel[report]'.")
    script = Path(found.submodule_search_locations[0]) / "package_data" / "plotly.min.js"
    return script.read_text(encoding="utf-8").replace("</script", "<\\/script")


def _asset(name: str) -> str:
    return (files("umbel.pages") / name).read_text(encoding="utf-8")
