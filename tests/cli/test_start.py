"""The start of the program: what is imported before anything is done, and what a shell is offered on Tab."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

import umbel
from umbel import cli
from umbel.algorithms import ALGORITHMS
from umbel.cli import complete
from umbel.data.scenarios import SCENARIOS
from umbel.data.sources import DATASETS
from umbel.engines import ENGINES
from umbel.nets import MODELS
from umbel.reproduce.table import load
from umbel.runs.experiment import Experiment

HEAVY = ("torch", "numpy", "scipy", "sklearn", "safetensors", "plotly", "matplotlib", "flwr")


def python(*words: str, **variables: str) -> str:
    """What a new Python process prints."""
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, env={**os.environ, **variables})
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def imported_by(program: str, heavy: tuple[str, ...] = HEAVY) -> list[str]:
    """Which heavy packages a program leaves in its process."""
    ask = f"import sys\ntry:\n    {program}\nexcept SystemExit:\n    pass\n" \
          f"print('\\n', *[name for name in {heavy} if name in sys.modules])"
    return python("-c", ask).splitlines()[-1].split()


def typed(*words: str) -> str:
    return f"sys.argv = ['umbel', *{words}]; import umbel.cli; umbel.cli.main()"


@pytest.mark.parametrize("words", [
    ("--help",), ("--version",), *((name, "--help") for name in get_command(cli.app).commands),
], ids=" ".join)  # type: ignore[attr-defined]
def test_help_is_there_before_anything_heavy(words: tuple[str, ...]) -> None:
    """Whoever only reads does not wait for torch."""
    assert imported_by(typed(*words)) == []


def test_the_public_names_are_there_before_anything_heavy() -> None:
    """`import umbel`, dir() and the names of a registry; only the thing itself brings torch."""
    assert imported_by("import umbel; dir(umbel); list(umbel.ALGORITHMS), 'mlp' in umbel.MODELS") == []
    assert imported_by("from umbel import FLAG", ("torch", "plotly", "flwr")) == ["torch"]


@pytest.mark.parametrize("module", ["umbel", "umbel.cli"])
def test_python_m(module: str) -> None:
    """`python -m umbel` is `umbel`."""
    assert python("-m", module, "--version").startswith("umbel ")
    assert "Usage: umbel [OPTIONS]" in python("-m", module, "--help")


def offered(line: str) -> list[str]:
    """What bash is given for the last word of a line."""
    words = line.split(" ")
    return python("-m", "umbel", _UMBEL_COMPLETE="complete_bash", COMP_WORDS=line,
                  COMP_CWORD=str(len(words) - 1)).splitlines()


@pytest.mark.parametrize(("line", "names"), [
    ("umbel run ", ALGORITHMS), ("umbel compare fedavg ", ALGORITHMS), ("umbel run flag --data ", DATASETS),
    ("umbel run flag --scenario ", SCENARIOS), ("umbel run flag --model ", MODELS), ("umbel run --engine ", ENGINES),
    ("umbel run flag --device ", ["auto", "cpu", "cuda"]),
    ("umbel list ", ["methods", "data", "scenarios", "models", "recipes", "tables"]),
    ("umbel run fl", ["flag", "flhc"]), ("umbel reproduce comparative/table2", ["comparative/table2"]),
])
def test_a_shell_is_offered_names(line: str, names: list[str]) -> None:
    """Those of the registries, in their order."""
    assert offered(line) == list(names)


def test_offered_names_bring_no_torch() -> None:
    """Those of data sets, scenarios and tables neither."""
    every = "; ".join(f"complete.{name}()" for name in
                      ("methods", "models", "engines", "devices", "data", "scenarios", "tables"))
    assert imported_by(f"from umbel.cli import complete; {every}", ("torch", "sklearn", "flwr")) == []


def test_offered_words_are_right_ones() -> None:
    """Those that are written down for the shell alone."""
    assert tuple(complete.devices()) == Experiment.__dataclass_fields__["device"].metadata["one_of"]
    assert [load(name).name for name in complete.tables()] == complete.tables()


def test_a_shell_can_be_told() -> None:
    """--install-completion is in the help; --show-completion is a script for bash."""
    assert "--install-completion" in python("-m", "umbel", "--help", COLUMNS="80")
    script = python("-m", "umbel", "--show-completion", "bash", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert "_UMBEL_COMPLETE=complete_bash" in script


def test_no_part_of_the_house_hides_a_public_name() -> None:
    """A submodule becomes an attribute of its package when it is imported: `umbel.run` must stay a function."""
    root = Path(umbel.__file__).parent
    assert not {path.stem for path in root.iterdir()} & set(umbel.__all__)
    assert callable(umbel.run)


def test_a_process_that_is_told_names_knows_all_tasks() -> None:
    """Methods register their tasks when they are imported: workers and nodes, who only hear a name, import them all."""
    ask = "from umbel.algorithms import import_all; import_all(); import umbel; print(*sorted(umbel.TASKS))"
    files = (Path(umbel.__file__).parent / "algorithms").glob("*.py")
    own = {name for path in files for name in re.findall(r'register\(\w+\(\s*"(\w+)"', path.read_text())}
    assert own
    assert own <= set(python("-c", ask).split())
