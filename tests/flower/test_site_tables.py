"""Sites with a CSV file each, in process: the apps of the page, word by word."""

import importlib.util
import json
import logging
from pathlib import Path

import numpy as np
import pytest

import umbel
from umbel.data.prepare import Column, Preparation
from umbel.errors import UmbelError
from umbel.flower import table_model
from umbel.flower.inprocess import InProcessGrid

pandas = pytest.importorskip("pandas")
flower = pytest.importorskip("flwr.app")
PAGE = Path(__file__).parents[2] / "docs" / "flower.md"


def patients(rows: int = 120) -> "pandas.DataFrame":
    """Two numbers with gaps, a category that north alone has in full, and what follows from them."""
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame({"hospital": rng.choice(["north", "south", "east"], rows), "age": rng.normal(60, 9, rows),
                              "rate": rng.normal(80, 20, rows), "ward": rng.choice(["a", "b", "c"], rows)})
    frame["death"] = np.where((frame["age"] > 60) ^ (frame["ward"] == "c"), "yes", "no")
    frame.loc[(frame["hospital"] != "north") & (frame["ward"] == "b"), "ward"] = "a"
    frame.loc[::9, "rate"] = np.nan
    return frame


@pytest.fixture
def apps(tmp_path: Path) -> Path:
    """A folder with both apps of the page, a preparation, and each site's CSV."""
    data = umbel.from_frame(patients(), client="hospital", target="death")
    how = umbel.simulate(data).provenance.preparation
    assert how is not None
    whole = Preparation(how.columns, how.scaling, data.objective, "death", "hospital")
    (tmp_path / "preparation.json").write_bytes(whole.json())
    for block in PAGE.read_text().split("```python\n# sites/")[1:]:
        name, _, code = block.partition("\n")
        (tmp_path / name).write_text(code.partition("```")[0])
    for name, rows in patients().groupby("hospital"):
        rows.drop(columns="hospital").to_csv(tmp_path / f"{name}.csv", index=False)
    return tmp_path


def app_of(path: Path) -> object:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.app


def test_sites_read_their_tables_as_the_page_says(apps: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A run of three sites ends in a folder with their names and scores; no row of a site was sent."""
    caplog.set_level(logging.ERROR, logger="flwr")
    config = {"method": "fedavg", "rounds": 3, "min-nodes": 3, "settings": "lr=0.1 epochs=5", "out": str(apps / "run")}
    grid = InProcessGrid(app_of(apps / "client_app.py"), run_config=config)
    for name in ("north", "south", "east"):
        grid.connect(**{"name": name, "data": str(apps / f"{name}.csv"), "memory-dir": str(apps / name)})
    app_of(apps / "server_app.py")(grid, flower.Context(1, 1, {}, flower.RecordDict(), config))
    info = json.loads((apps / "run" / "result.json").read_text())
    assert sorted(info["clusters"]["labels"]) == ["east", "north", "south"]
    assert info["score"]["cluster_model"]["mean"] > 0.6
    simulated = umbel.simulate(umbel.from_frame(patients(), client="hospital", target="death")).net
    assert (info["model"]["name"], info["model"]["parameters"]) == ("mlp", simulated.parameters)


def test_a_preparation_that_says_not_what_is_learnt_makes_no_model() -> None:
    """One sentence."""
    with pytest.raises(UmbelError, match=r"must say what is learnt\. This one names no objective\."):
        table_model(Preparation((Column("age"),)))
