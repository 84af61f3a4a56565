"""The order of the house: imports go one way, and what must not appear does not."""

import ast
import re
from pathlib import Path

import umbel

ROOT = Path(umbel.__file__).parent
ORDER = [
    "errors", "files", "plugins", "registry", "fields", "processes", "scratch", "seeds", "ops", "tree", "nets", "data",
    "federation", "clustering", "algorithms", "engines", "runs", "diagnosis", "reproduce", "pages", "flower", "cli",
]


def modules() -> dict[Path, set[str]]:
    """Each source file, and the top-level parts of umbel that it imports."""
    found = {}
    for path in ROOT.rglob("*.py"):
        names = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("umbel"):
                parts = node.module.split(".")
                names |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        found[path] = names
    return found


def part(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def test_imports_go_one_way():
    """A part may use only what stands left of it."""
    for path, names in modules().items():
        if part(path) in ("__init__", "__main__"):
            continue
        assert part(path) in ORDER, f"{path} has no place in the order"
        for name in names:
            assert ORDER.index(name) <= ORDER.index(part(path)), f"{path.name} imports {name}, which stands right of it"


def test_algorithms_and_engines_do_not_know_each_other():
    """A method is written once; an engine runs any."""
    for path, names in modules().items():
        assert not (part(path) == "algorithms" and "engines" in names), path
        assert not (part(path) == "engines" and "algorithms" in names), path


def test_a_stack_of_models_grows_in_one_place():
    """`State.grow`: a method that joins models by hand could forget a device, or a field of its state."""
    for path in (ROOT / "algorithms").glob("*.py"):
        if path.name not in ("base.py", "sweep.py"):  # where `grow` is; trial models that are thrown away
            assert not re.search(r"tree\.cat\(\[.*models", path.read_text()), path


def test_only_evaluate_reaches_for_test_rows():
    """`testing()` is called in one place."""
    callers = {path.name for path in ROOT.rglob("*.py") if re.search(r"\.testing\(\)", path.read_text())}
    assert callers == {"evaluate.py"}


def test_nothing_is_unpickled_or_evaluated():
    """No torch.load, no eval; CIFAR's pickles are read by an unpickler that admits a few names."""
    for path in ROOT.rglob("*.py"):
        text = path.read_text()
        assert not re.search(r"torch\.load\(|\beval\(|\bexec\(|pickle\.loads?\(|allow_pickle=True", text), path


def test_durations_are_by_a_clock_that_nobody_sets():
    """The time of day may go backwards; it is read for a date on a page, and in the log of a site, alone."""
    callers = {path.name for path in ROOT.rglob("*.py")
               if re.search(r"\btime\.time(_ns)?\(|datetime\.now\(|from time import .*\btime\b", path.read_text())}
    assert callers == {"page.py", "audit.py"}


def test_public_names():
    """What `import umbel` promises."""
    assert sorted(umbel.__all__) == sorted(set(umbel.__all__))
    assert all(hasattr(umbel, name) for name in umbel.__all__)
    assert set(umbel.__all__) <= set(dir(umbel))
    assert len(umbel.__all__) <= 85


def test_python_and_mypy_see_the_same_public_names():
    """They are written down twice: as imports that only mypy reads, and as the homes that names are fetched from."""
    page = ast.parse(Path(umbel.__file__).read_text())
    seen = {(node.module, alias.name) for node in ast.walk(page) if isinstance(node, ast.ImportFrom)
            for alias in node.names if node.module not in ("typing", "umbel.registry")}
    assert seen == {(home, name) for home, names in umbel._HOMES.items() for name in names.split()}
    assert {name for _, name in seen} == set(umbel.__all__)
