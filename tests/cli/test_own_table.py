"""A table of one's own from the command line: the page's three commands, stops, newcomers, sites."""

import json
import re
import shlex
import tomllib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import umbel
from umbel.cli import main
from umbel.errors import UmbelError
from umbel.runs.experiment import Experiment
from umbel.runs.session import Session

pandas = pytest.importorskip("pandas")
PAGE = Path(__file__).parents[2] / "docs" / "data.md"
Say = Callable[[str], tuple[int, str, str]]


def patients(seed: int = 0, rows: int = 120) -> "pandas.DataFrame":
    """Breast cancer of scikit-learn, with hospitals, a category and gaps made up."""
    from sklearn.datasets import load_breast_cancer

    frame = load_breast_cancer(as_frame=True).frame.sample(rows, random_state=seed).reset_index(drop=True)
    frame = frame.iloc[:, [0, 1, 2, -1]].set_axis(["radius", "texture", "perimeter", "death"], axis=1)
    rng = np.random.default_rng(seed)
    frame["hospital"] = rng.choice(["north", "south", "east"], rows)
    frame["sex"] = rng.choice(["f", "m"], rows)
    frame.loc[::7, "texture"] = np.nan
    return frame


@pytest.fixture
def say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Say:
    """Type a command beside patients.csv: its exit code, what it printed, and its error."""
    monkeypatch.chdir(tmp_path)
    patients().to_csv(tmp_path / "patients.csv", index=False)

    def type_(words: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", shlex.split(words))
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        return int(end.value.code or 0), *capsys.readouterr()

    return type_


RUN = ("umbel run fedavg --data patients.csv --client-column hospital --target-column death --rounds 1 --epochs 1"
       " --out runs/patients")


def test_the_page_is_followed_word_by_word(say: Say, tmp_path: Path) -> None:
    """From a CSV to a report; what was understood is said in a few lines, stored, and what was sent is billed."""
    block = next(text for text in PAGE.read_text().split("```") if "umbel run" in text and "--client-column" in text)
    install, run, report = block.strip().splitlines()
    assert install == "pip install 'umbel[tables,report]'"
    extras = tomllib.loads((PAGE.parents[1] / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {"pandas", "pyarrow", "jinja2", "plotly"} <= {re.split("[<>=]", each)[0]
                                                         for extra in ("tables", "report") for each in extras[extra]}
    code, out, _ = say(run)
    assert code == 0
    before = out[: out.index("round 1/5")]
    assert "Understood: 120 rows of 3 clients (" in before
    assert "1 categories: sex (2)" in before
    assert "1 missing: texture 18" in before
    assert before.count("\n") < 15
    info = json.loads((tmp_path / "runs/patients/result.json").read_text())
    assert info["scenario"] == "natural"
    assert list(info["clusters"]["labels"]) == ["east", "north", "south"]
    assert info["scenario_facts"]["understood"]["target"] == {"name": "death", "classes": ["0", "1"]}
    assert info["bytes"]["by_kind"]["column_sums"] == 3 * 3 * 8
    code, out, _ = say(report)
    page = tmp_path / "runs/patients/report.html"
    assert code == 0
    assert page.name in out
    assert all(word in page.read_text() for word in ("fedavg on patients.csv", "east", "north", "south"))


def test_a_file_that_changes_between_stop_and_resume_is_refused(say: Say, tmp_path: Path) -> None:
    """By its name; the run folder stays as it was, and goes on when the old file is back."""
    experiment = Experiment(data="patients.csv", client_column="hospital", target_column="death", rounds=2,
                            settings={"epochs": 1})
    session = Session.start(experiment, Path("runs/a"))
    next(session.rounds())
    session.close()
    patients(seed=1).to_csv("patients.csv", index=False)
    before = {path.name: path.read_bytes() for path in Path("runs/a").iterdir()}
    with pytest.raises(UmbelError, match=r"The rows of patients\.csv were changed since this partition was drawn"):
        Session.resume(Path("runs/a"))
    code, _, err = say("umbel run --resume --out runs/a")
    assert (code, err.count("\n")) == (2, 1)
    assert "The rows of patients.csv were changed" in err
    assert {path.name: path.read_bytes() for path in Path("runs/a").iterdir()} == before
    patients().to_csv("patients.csv", index=False)
    assert umbel.resume("runs/a").info["rounds"]["after"] == 2


def test_a_newcomer_brings_its_own_table(say: Say, tmp_path: Path) -> None:
    """It is prepared as the run's clients were: no numbers of its own count."""
    assert say(RUN)[0] == 0
    patients(seed=2, rows=20).drop(columns="hospital").to_csv("new.csv", index=False)
    code, out, err = say("umbel admit runs/patients new.csv")
    assert (code, err) == (0, "")
    assert "new" in out
    patients(seed=2, rows=20).drop(columns="sex").to_csv("less.csv", index=False)
    code, _, err = say("umbel admit runs/patients less.csv")
    assert code == 2
    assert "There is no column in less.csv named 'sex'" in err


def test_a_preparation_of_an_earlier_run_costs_nothing(say: Say, tmp_path: Path) -> None:
    """The same inputs, and no client is asked."""
    assert say(RUN)[0] == 0
    given = RUN.replace("runs/patients", "runs/b") + " --preparation runs/patients/preparation.json"
    assert say(given)[0] == 0
    one, two = (json.loads((tmp_path / "runs" / name / "result.json").read_text()) for name in ("patients", "b"))
    assert one["partition_hash"] == two["partition_hash"]
    assert "column_sums" not in two["bytes"]["by_kind"]


@pytest.mark.parametrize(("more", "sentence"), [
    ("--client-column hostpital", "There is no column in patients.csv named 'hostpital'. Did you mean 'hospital'?"),
    ("--objective classify", "Say what is to be learnt of patients.csv"),
    ("--scaling loud", "The 'scaling' of the run must be 'federated' or 'site' or 'none'. Got 'loud' instead."),
    ("--normalise", "Data of your own are scaled by --scaling. Got --normalise for them."),
])
def test_wrong_words_change_nothing(more: str, sentence: str, say: Say, tmp_path: Path) -> None:
    """One sentence, and no run folder."""
    target = "" if "Say what" in sentence else " --target-column death"
    code, _, err = say(f"umbel run fedavg --data patients.csv --client-column hospital {more}{target} --out runs/x")
    assert (code, err.count("\n")) == (2, 1)
    assert sentence in err
    assert not (tmp_path / "runs").exists()


TEXTS = "must be texts of at most 1,000 letters, without control characters. Got"


@pytest.mark.parametrize(("spoil", "more", "sentence"), [
    (lambda frame: frame.drop(columns="death"), "", "There is no column in patients.csv named 'death'"),
    (lambda frame: frame.assign(hospital=["west", *frame["hospital"][1:]]), "",
     "Every client needs a row to be tested on, and 'west' has none, of 1 in all: add rows"),
    (lambda frame: frame.assign(radius=[*frame["radius"][:-1], "wide"]), "",
     "The column 'radius' of patients.csv must hold numbers or texts, not both. It has numbers, and 'wide'"
     " in row 1200: correct that"),
    (lambda frame: frame.assign(born="1950-03-07"), "", "The column 'born' of patients.csv holds dates"),
    (lambda frame: frame.assign(note=[f"text {k}" for k in range(1200)]), "", "more than 1,000 different texts"),
    (lambda frame: frame.rename(columns={"sex": "\x1b[2J"}), "", f'The columns of patients.csv {TEXTS} "?[2J"'),
    (lambda frame: frame.replace({"hospital": {"east": "\x9b2J"}}), "", f"The clients in the column 'hospital' of"
     f' patients.csv {TEXTS} "?2J"'),
    (lambda frame: frame.replace({"sex": {"m": "m\x07"}}), "", f"column 'sex' of patients.csv {TEXTS} \"m?\""),
    (lambda frame: frame.assign(death=["n\x07", "y"] * 600), "", f"column 'death' of patients.csv {TEXTS} \"n?\""),
    (lambda frame: frame.assign(death=["no", "yes"] * 600), "--objective regress",
     "The target 'death' of patients.csv must hold numbers for a regression. Got 'no' in row 1."),
    (lambda frame: frame[:0], "", "A table needs rows, and patients.csv has none"),
    (lambda frame: frame[["hospital", "death"]], "", "A table needs a column to learn from, with more than one value"),
])
def test_a_bad_table_is_one_sentence_and_leaves_nothing(
        spoil: Callable[["pandas.DataFrame"], "pandas.DataFrame"], more: str, sentence: str, say: Say, tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch) -> None:
    """With the column and the row, counted through a file that is read in parts."""
    monkeypatch.setattr("umbel.data.tables.AT_ONCE", 500)
    spoil(pandas.concat([patients()] * 10, ignore_index=True)).to_csv("patients.csv", index=False)
    code, _, err = say(f"{RUN} {more}")
    assert (code, err.count("\n")) == (2, 1)
    assert sentence in err
    assert not (tmp_path / "runs").exists()


def test_what_is_constant_is_kept_out_and_said(say: Say, tmp_path: Path) -> None:
    """On the screen, and in the result."""
    patients().assign(year=2020).to_csv("patients.csv", index=False)
    code, out, _ = say(RUN)
    assert code == 0
    assert "1 kept out: year (one value)" in out
    info = json.loads((tmp_path / "runs/patients/result.json").read_text())
    assert info["scenario_facts"]["understood"]["kept_out"] == {"year": "one value"}


def test_a_category_unseen_in_training_is_one_level_for_all_such(say: Say) -> None:
    """A newcomer whose patients are of a third kind, as one whose kind is missing: both are placed, and alike."""
    assert say(RUN)[0] == 0
    rows = patients(seed=2, rows=20).drop(columns="hospital")
    xs = []
    for name, sex in (("other", "x"), ("gone", "")):
        rows.assign(sex=sex).to_csv(f"{name}.csv", index=False)
        code, _, err = say(f"umbel admit runs/patients {name}.csv")
        assert (code, err) == (0, "")
        xs.append(umbel.read_site(f"{name}.csv", "runs/patients/preparation.json")[0][0])
    assert np.array_equal(*xs)
    assert set(xs[0][:, 3].tolist()) == {2}  # behind f and m


def test_options_of_tables_are_for_tables() -> None:
    """A set by name has no columns."""
    with pytest.raises(UmbelError, match=r"'client_column' of a run is for data of your own.* Got data 'digits'"):
        Experiment(client_column="hospital")


def test_sites_of_flower_read_their_own_tables(say: Say, tmp_path: Path) -> None:
    """`load_data` from a CSV with the preparation of a run: the inputs of the run's network, and a round."""
    pytest.importorskip("flwr")
    from umbel.data.clients import Population
    from umbel.flower.inprocess import InProcessFlower
    from umbel.runs.sealed import Sealed
    from umbel.runs.session import load

    assert say(RUN)[0] == 0
    sites = {}
    for name, part in patients().groupby("hospital"):
        part.to_csv(f"{name}.csv", index=False)
        train, test = umbel.read_site(f"{name}.csv", "runs/patients/preparation.json")
        assert test is not None
        sites[name] = (*train, *test)
    how, net = Sealed(Path("runs/patients")).preparation(), load("runs/patients").net
    assert how is not None
    assert net is not None
    assert all(x.shape[1:] == net.shape == (len(how.inputs),) for x, *_ in sites.values())
    fed = InProcessFlower(net, Population.of_sites(sites, how.objective), 0)
    assert umbel.run("fedavg", fed, rounds=1).score > 0.5
