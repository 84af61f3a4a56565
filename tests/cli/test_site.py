"""`umbel site`: what whoever answers for a site can see of it."""

import stat
import sys
from pathlib import Path

import numpy as np
import pytest
from terminal import Umbel

from umbel import cli
from umbel.flower import audit
from umbel.flower.check import site_in

APP = Path(__file__).parents[2] / "examples" / "flower" / "app"


@pytest.fixture(autouse=True)
def _forget_the_app(monkeypatch):
    """Its modules are imported under names of their own."""
    yield
    for name in [name for name in sys.modules if name.split(".")[0] == "sites"]:
        monkeypatch.delitem(sys.modules, name)


@pytest.fixture
def data(tmp_path):
    """Rows of ten classes, 20 of each, but one of the last; eight test rows."""
    rng = np.random.default_rng(0)
    y = np.append(np.arange(180) % 9, 9)
    x = rng.integers(0, 256, (len(y), 1, 8, 8)).astype(np.uint8)
    np.savez(tmp_path / "rows.npz", x_train=x, y_train=y, x_test=x[:8], y_test=y[:8])
    return tmp_path / "rows.npz"


def checked(umbel, config):
    return umbel("site", "check", APP, "--node-config", f'name="site-a" data="rows.npz" memory-dir="memory" {config}')


def test_check_says_what_a_server_would_get(umbel: Umbel, data: Path, tmp_path: Path) -> None:
    """By default: models, vectors without the class that has one row, no scores of eight test rows, nothing kept."""
    code, out, err = checked(umbel, "")
    assert (code, err) == (0, "")
    said = " ".join(out.split())
    assert said.startswith("site-a: 181 training and 8 test rows for the model mlp. Memory in memory can be written;")
    for line in ("models trained here yes on the rows train or fit",
                 "descriptions yes up to 5 vectors of 180 rows, classes 0, 1, 2, 3, 4, 5, 6, 7, 8; left out: 9",
                 "scores no fewer than 10 different test rows", "models it keeps no the policy says no"):
        assert line in said
    assert not list((tmp_path / "memory").iterdir())
    (tmp_path / "policy.toml").write_text('methods = ["flag"]\nsignatures = false\nleast_rows = 8\nuplinks = "clip:1"')
    said = " ".join(checked(umbel, 'policy="policy.toml"').out.split())
    for line in ("Allowed methods: flag. Every answer must pass clip:1.", "descriptions no the policy says no",
                 "scores yes sums over 8 test rows"):
        assert line in said


@pytest.mark.parametrize(("config", "sentence"), [
    ('policy="none.toml"', "The file none.toml cannot be read: No such file or directory."),
    ('policy="bad.toml"', "The policy bad.toml cannot be kept. There is no setting of a policy named 'least_row'."),
    ('data="nowhere.npz"', "The site cannot begin: FileNotFoundError: "),
    ('name="two words"', "A node needs a name of letters, digits"),
    ('memory-dir="rows.npz"', "The folder rows.npz cannot be made: File exists."),
    ("more=[", "A node's configuration is written as in"),
])  # fmt: skip
def test_check_of_a_site_that_cannot_begin(umbel: Umbel, data: Path, tmp_path: Path, config: str,
                                           sentence: str) -> None:
    """One sentence, before anybody is connected."""
    (tmp_path / "bad.toml").write_text("least_row = 3")
    given = {"name": '"site-a"', "data": '"rows.npz"', "memory-dir": '"memory"', **dict([config.split("=", 1)])}
    code, out, err = umbel("site", "check", APP, "--node-config", " ".join(f"{k}={v}" for k, v in given.items()))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert sentence in err


def test_check_of_a_folder_that_is_no_app(umbel: Umbel, tmp_path: Path) -> None:
    """One sentence."""
    (tmp_path / "pyproject.toml").write_text("[project]")
    code, _, err = umbel("site", "check", tmp_path, "--node-config", 'name="a"')
    assert code == 2
    assert "pyproject.toml must be that of a Flower app, with its clientapp. It is not: 'tool'." in err


def test_the_site_is_the_apps(data: Path, tmp_path: Path) -> None:
    """As a SuperNode would make it."""
    site = site_in(APP, f'name="site-b" data="{data}" memory-dir="{tmp_path}/m" audit="{tmp_path}/log.jsonl"')
    assert (site.name, len(site.people.train[0]), site.audit) == ("site-b", 181, tmp_path / "log.jsonl")
    assert site.durable


def test_the_log_is_a_table(umbel: Umbel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line a message, the refused ones with their sentence; words from outside are no markup."""
    place = audit.place(tmp_path / "memory", "site-a")
    common = {"when": "2026-11-19T12:00:00+00:00", "site": "site-a", "run": "[red]x", "phase": "train", "round": 3}
    audit.write(place, {**common, "task": "train", "jobs": 2, "in": 1000, "out": 2048,
                        "left": {"model/w": [8, 9], "size": []}})
    audit.write(place, {**common, "task": "score", "jobs": 1, "in": 1000, "out": 0, "refused": "It says no."})
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    monkeypatch.setattr(cli.console, "width", 120)
    code, out, err = umbel("site", "log", "memory")
    assert (code, err) == (0, "")
    flat = "".join(out.split())
    for text in ("2026-11-1912:00:00[red]x3train1,0002,048model/w8x9,size,2times",
                 "2026-11-1912:00:00[red]x3trainscore1,0000refused:Itsaysno."):
        assert text in flat
    assert out.endswith("2 messages, 1 refused, 2,048 bytes out.\n")
    assert "1 messages, 1 refused" in umbel("site", "log", place, "--refused").out
    assert "There is no log in ." in umbel("site", "log", ".").err
