"""Flower's own simulation: `--engine flower`."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers import tiny_model, tiny_population
from safetensors.torch import load_file

import umbel
from umbel.engines import ENGINES
from umbel.errors import UmbelError
from umbel.nets.wrap import build


def umbel_run(out, *arguments):
    """As a person types it, in a process of its own: Ray belongs to no test process."""
    command = [sys.executable, "-m", "umbel.cli", "run", *arguments, "--device", "cpu", "--quiet", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=540, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((out / "result.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("method", ["pacfl", "flag"])
def test_twenty_nodes_on_ray_equal_the_simulator(method, tmp_path):
    """Digits, four rotations: the same clusters, scores and bytes, and the models within 1e-5."""
    wishes = (method, "--scenario", "rotation-4", "--clients", "20", "--rounds", "2", "--epochs", "5",
              "--fine-tune", "0")
    simulator, flower = (umbel_run(tmp_path / engine, *wishes, "--engine", engine, "--workers", "2")
                         for engine in ("simulator", "flower"))
    assert flower["clusters"]["labels"] == simulator["clusters"]["labels"]
    why, as_there = flower["clusters"]["why"], simulator["clusters"]["why"]
    assert why.pop("steady") == as_there.pop("steady")
    assert why.pop("pays", {}) == pytest.approx(as_there.pop("pays", {}), abs=1e-6)
    assert why == pytest.approx(as_there, abs=1e-6)
    for kind in ("cluster_model", "last_local"):
        ours, theirs = ({name: value for name, value in run["score"][kind].items() if name != "pooled"}
                        for run in (flower, simulator))
        assert ours == pytest.approx(theirs, abs=1e-6)
        assert flower["score"][kind]["pooled"] == pytest.approx(simulator["score"][kind]["pooled"], abs=1e-6)
    assert flower["bytes"] == simulator["bytes"]
    states = [load_file(tmp_path / engine / "state.safetensors") for engine in ("simulator", "flower")]
    assert all(torch.allclose(states[0][name], states[1][name], atol=1e-5) for name in states[0])


def test_what_ray_cannot_do_is_said():
    """Before any process is started."""
    with pytest.raises(UmbelError, match=r"by their names: linear, mlp, .*, gru, tcn\. Got 'own' instead"):
        ENGINES["flower"](tiny_model(), tiny_population(), 0, torch.device("cpu"))
    with pytest.raises(UmbelError, match="computes on the CPU"):
        ENGINES["flower"](build("mlp", (1, 3, 3), 3), tiny_population(), 0, torch.device("cuda"))


def test_an_engine_that_is_not_used_starts_nothing():
    """Ray comes with the first message, and not before."""
    fed = ENGINES["flower"](build("mlp", (1, 3, 3), 3), tiny_population(), 0, torch.device("cpu"))
    assert fed.online.all()
    folder = fed.folder
    assert (folder / "facts.json").exists()
    fed.close()
    assert not folder.exists()


def test_the_core_does_without_flower():
    """Flower is an extra: importing umbel and its command line does not import it."""
    code = "import sys, umbel, umbel.cli; sys.exit(any(name.split('.')[0] in ('flwr', 'ray') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_flower_is_imported_by_its_own_files_alone():
    """What Flower's monthly releases can break is in one package."""
    root = Path(umbel.__file__).parent
    users = {path.relative_to(root).parts[0] for path in root.rglob("*.py")
             if re.search("(import|from) flwr", path.read_text())}
    assert users == {"flower"}
