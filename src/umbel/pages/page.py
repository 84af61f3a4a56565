"""One self-contained HTML file: no server, no network, no framework but the drawing library inside it.

Text becomes HTML in `templates/` alone, by Jinja with escaping on. A policy in the page forbids the browser to load
anything from anywhere.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from umbel.errors import UmbelError
from umbel.pages import plots, views
from umbel.pages.load import Run
from umbel.pages.panels import compared, each_run
from umbel.pages.parts import Drawings
from umbel.pages.summary import summary
from umbel.runs.result import versions


def write(runs: Sequence[Run]) -> str:
    """The whole page."""
    drawings, entrants = Drawings(), views.entrants(runs)
    names = views.run_names(entrants)
    return render(
        "page.html",
        summary=summary(entrants, names),
        compared=compared(drawings, entrants),
        panels=each_run(drawings, [run for entrant in entrants for run in entrant.runs], names),
        data={"figures": drawings.figures, "trees": drawings.trees, "largest": plots.LARGEST},
        css=asset("page.css"), script=asset("page.js"), plotly=drawing_library(),
    )


def render(template: str, **values: Any) -> str:
    """A filled-in template, which knows the day and umbel's version.

    Data for scripts go through the filter `tojson`, whose JSON cannot end its script.
    """
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined  # an extra
    except ImportError:
        raise UmbelError("A report is written by Jinja, which is not installed: pip install 'umbel[report]'.") from None
    jinja = Environment(loader=PackageLoader("umbel.pages"), autoescape=True, undefined=StrictUndefined,
                        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    jinja.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}  # what JSON.parse can read
    today = {"version": versions()["umbel"], "now": f"{datetime.now(UTC):%Y-%m-%d %H:%M}"}
    return jinja.get_template(template).render(today | values)


def drawing_library() -> str:
    """plotly.js, as Plotly's Python package brings it; the package itself, slow to import, is not loaded."""
    package = find_spec("plotly")
    if package is None or not package.submodule_search_locations:
        raise UmbelError("A report is drawn by Plotly, which is not installed: pip install 'umbel[report]'.")
    script = Path(package.submodule_search_locations[0]) / "package_data" / "plotly.min.js"
    return script.read_text(encoding="utf-8").replace("</script", "<\\/script")


def asset(name: str) -> str:
    """The text of a file that comes with the package."""
    return (files("umbel.pages") / name).read_text(encoding="utf-8")
