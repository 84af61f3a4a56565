"""Run folders in, a page out."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from umbel.diagnosis.diagnose import Diagnosis
from umbel.errors import UmbelError
from umbel.files import make_folder, write_atomically
from umbel.pages import diagnosis, load, page
from umbel.runs.result import Result

Source = str | Path | Result


def report(runs: Source | Diagnosis | Sequence[Source], out: str | Path | None = None,
           figures: str | Path | None = None) -> Path:
    """Explain finished runs in one HTML page that needs no network; returns where it lies.

    `runs` are run folders, folders of a comparison, or results in memory. The page is written to `out`, a file or a
    folder; by default to report.html in the run's folder where it is one, else here. `figures` is a folder for figures
    of a paper, as PNG and SVG. A diagnosis (`umbel.diagnose`) has a page of its own kind, diagnosis.html by default.
    """
    if isinstance(runs, Diagnosis):
        return write_diagnosis(runs, Path("diagnosis.html" if out is None else out))
    sources = [runs] if isinstance(runs, str | Path | Result) else list(runs)
    with tempfile.TemporaryDirectory() as place:
        folders = [_folder(each, Path(place) / str(k)) for k, each in enumerate(sources)]
        loaded = [load.load(path) for path in dict.fromkeys(inside for run in folders for inside in load.expand(run))]
        if not loaded:
            raise UmbelError("A report needs at least one run.")
        lone = len(sources) == 1 and not isinstance(sources[0], Result)
        target = Path(out) if out is not None else (folders[0] if lone else Path()) / "report.html"
        return write(loaded, target, None if figures is None else Path(figures))[0]


def write_diagnosis(found: Diagnosis, target: Path) -> Path:
    """The page of a diagnosis in a file or in a folder; where it lies."""
    return _written(diagnosis.write(found), target, "diagnosis.html")


def _written(html: str, target: Path, name: str) -> Path:
    target = target / name if target.is_dir() and not target.is_symlink() else target
    if not target.parent.is_dir():
        make_folder(target.parent)
    write_atomically(target, html.encode())
    return target


def _folder(source: Source, place: Path) -> Path:
    return source.save(place) if isinstance(source, Result) else Path(source)


def write(runs: Sequence[load.Run], target: Path, figures: Path | None = None) -> tuple[Path, int]:
    """The page in a file or in a folder, and perhaps figures; where it lies, and how many figures were drawn."""
    names = list(dict.fromkeys(run.metric.name for run in runs))
    if len(names) > 1:
        raise UmbelError(f"A report is of runs that are judged by one metric. Got {' and '.join(names)}: make one"
                         " report of each.")
    target = _written(page.write(list(runs)), target, "report.html")
    if figures is None:
        return target, 0
    from umbel.pages import figures as paper  # matplotlib is an extra

    return target, len(paper.write(list(runs), figures))
