"""`umbel admit`: a client that comes after a run has ended."""

import re
from contextlib import suppress

import numpy as np
import pytest

import umbel
from umbel import cli
from umbel.data.sources import open_dataset
from umbel.files import read_json
from umbel.runs.newcomer import admit

SETTINGS = ["--scenario", "rotation-4", "--clients", "12", "--rounds", "6", "--epochs", "5", "--device", "cpu", "-q"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """FedClust on digits, whose four rotations it finds."""
    folder = tmp_path_factory.mktemp("admit") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["umbel", "run", "fedclust", *SETTINGS, "--out", str(folder)])
        with suppress(SystemExit):
            cli.main()
    assert (folder / "result.json").exists()
    return folder


def client(path, turns=0, **arrays):
    """A newcomer's file: 60 test digits, turned."""
    digits = open_dataset("digits")
    x = np.rot90(digits.x_test, turns, axes=(2, 3)).copy()
    held = {"x_train": x[:60], "y_train": digits.y_test[:60], "x_test": x[60:160], "y_test": digits.y_test[60:160]}
    np.savez(path, **{**held, **arrays})
    return path


@pytest.mark.parametrize("turns", [0, 1, 2, 3])
def test_a_newcomer_joins_the_cluster_of_its_kind(run, tmp_path, turns):
    """Digits turned as a group's are land in that group, whose model serves them better than chance by far."""
    placed = admit(run, client(tmp_path / "new.npz", turns), epochs=2)
    info = read_json(run / "result.json")["clusters"]
    home = {label for name, label in info["labels"].items() if info["truth"][name] == turns}
    assert {placed.cluster} == home
    assert placed.members == 3
    assert placed.accuracy > 0.3
    assert placed.fine_tuned > 0.3


def test_a_newcomer_is_scored_on_its_test_rows(run, tmp_path):
    """Whose labels are all moved on by one here: the cluster's model, which is right elsewhere, is wrong on most."""
    file = client(tmp_path / "new.npz")
    with np.load(file) as rows:
        x, y = rows["x_test"], (rows["y_test"] + 1) % 10
    placed = admit(run, client(file, y_test=y))
    hits = umbel.load(run).predict(x, cluster=placed.cluster) == y
    assert placed.accuracy == pytest.approx(hits.mean())
    assert placed.accuracy < 0.3


def test_admit_leaves_the_run_as_it_was(run, tmp_path):
    """Nothing is written into the run folder."""
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    admit(run, client(tmp_path / "new.npz"))
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before


def test_the_command_says_where_and_saves_the_model(run, tmp_path, monkeypatch, capsys):
    """As a person would use it."""
    file, model = client(tmp_path / "site.npz"), tmp_path / "model.safetensors"
    monkeypatch.setattr("sys.argv", ["umbel", "admit", str(run), str(file), "--fine-tune", "1", "--save", str(model)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert not end.value.code
    assert "site joins cluster 0, which has 3 clients." in capsys.readouterr().out
    assert model.stat().st_size > 4 * 15_010


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"x_train": np.zeros((60, 9, 9), np.uint8)},
         "The inputs of 'bad' must be (1, 8, 8), as those of this run. Got (9, 9) instead."),
        ({"x_train": np.zeros((60, 8, 8))},
         "The inputs of 'bad' must be uint8 images, as those of this run. Got float64 instead."),
        ({"y_train": np.full(60, 10)}, "The labels of 'bad' must lie in 0 .. 9. Got 10 in row 0 instead."),
        ({"y_train": np.zeros(3, np.int64)}, "Every row of 'bad' needs a target. Got 60 rows and 3 targets."),
        ({"y_test": np.full(100, "one")}, "The labels of 'bad' (test rows) are texts, as in 'one': number them from 0"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(run, tmp_path, arrays, sentence):
    """One sentence names the array, the rule and what was found."""
    with pytest.raises(umbel.UmbelError, match=re.escape(sentence)):
        admit(run, client(tmp_path / "bad.npz", **arrays))


def test_a_name_that_is_taken_and_a_run_that_has_not_ended_are_refused(run, tmp_path):
    """A newcomer is new, and a run must have clusters to join."""
    with pytest.raises(umbel.UmbelError, match="'c003' is a client"):
        admit(run, client(tmp_path / "c003.npz"))
    with pytest.raises(umbel.UmbelError, match=r"no result\.json"):
        admit(tmp_path, client(tmp_path / "new.npz"))


@pytest.mark.parametrize("method", [umbel.PACFL(rank=3), umbel.FLAG(gradient_epochs=3, cut="silhouette")])
def test_late_joiners_are_placed_when_they_appear_and_train_at_once(method):
    """PACFL's Alg. 1: who first appears in round 2 is described then, joins, and trains from that round on."""
    experiment = umbel.Experiment(scenario="label-4", clients=12, shuffle=True, join="4@2", device="cpu").resolved()
    fed, _ = experiment.build(*experiment.draw())
    states = list(umbel.rounds(method, fed, rounds=4, fine_tune=0))
    labels = {done.index: done.state.labels for done in states}
    assert all(labels[r][8:].tolist() == [-1] * 4 for r in (-1, 0, 1))
    assert all(int(label) >= 0 for label in labels[2][8:])
    assert {8, 9, 10, 11} <= set(states[3].record["trained"])
    assert labels[3][:8].tolist() == labels[1][:8].tolist()


def test_pacfl_can_recluster_when_newcomers_come():
    """The extended matrix is cut as before; clusters keep the labels of most of their old members."""
    experiment = umbel.Experiment(scenario="rotation-4", clients=12, shuffle=True, join="4@1", device="cpu").resolved()
    fed, _ = experiment.build(*experiment.draw())
    method = umbel.PACFL(recluster=True, cut="count", clusters=4)
    before, after = (list(umbel.rounds(method, fed, rounds=2, fine_tune=0))[r].state for r in (1, 2))
    assert after.evidence["proximity"].shape == (12, 12)
    assert (after.labels >= 0).all()
    assert (before.labels[:8] == after.labels[:8]).float().mean() > 0.5


@pytest.mark.parametrize("method", ["lg", "solo"])
def test_where_the_server_has_no_whole_model_the_newcomer_makes_its_own(method, tmp_path, monkeypatch):
    """LG's shared layers are merged with the client's first ones, SOLO starts from the first model: both are whole."""
    folder = tmp_path / "run"
    layers = ["--set", "layers=1"] if method == "lg" else []
    monkeypatch.setattr("sys.argv", ["umbel", "run", method, *SETTINGS, *layers, "--out", str(folder)])
    with suppress(SystemExit):
        cli.main()
    for epochs in (0, 2):
        placed = admit(folder, client(tmp_path / "new.npz"), epochs=epochs)
        assert sum(leaf.numel() for leaf in placed.model.values()) == 15_010
        assert (placed.fine_tuned is None) == (epochs == 0)


def test_a_newcomer_with_numbers_is_placed_and_scored_in_their_unit(tmp_path):
    """A run on a table takes float rows, and targets that are numbers; MAE as plain numpy computes it."""
    fed = umbel.simulate("diabetes", clients=4, device="cpu")
    run = umbel.run(umbel.FedAvg(local=umbel.Local(epochs=2)), fed, rounds=2, fine_tune=0).save(tmp_path / "run")
    data = open_dataset("diabetes")
    x, y = data.x_test.astype(float), data.y_test.astype(float)
    placed = admit(run, (x[:40], y[:40], x[40:], y[40:]))
    assert (placed.cluster, placed.members) == (0, 4)
    foretold = umbel.load(run).predict(data.x_test[40:], cluster=0).reshape(-1)
    assert placed.score == pytest.approx(np.abs(foretold - y[40:]).mean(), rel=1e-5)
    with pytest.raises(umbel.UmbelError, match=r"targets of 'newcomer' must be finite\. Got nan in row 3"):
        admit(run, (x[:40], np.where(np.arange(40) == 3, np.nan, y[:40])))
