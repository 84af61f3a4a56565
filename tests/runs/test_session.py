"""`umbel.run`: when it ends, and which round's models it keeps."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from helpers import LOCAL, SEED, tiny_model, tiny_population

from umbel import tree
from umbel.algorithms import FedAvg
from umbel.data.clients import Population
from umbel.errors import UmbelError
from umbel.runs.experiment import Experiment, _loaded
from umbel.runs.session import Session, load, resume, run
from umbel.runs.simulate import simulate


@pytest.fixture(params=["in memory", "in a folder"])
def out(request, tmp_path):
    """Where a run is kept, if anywhere."""
    return tmp_path / "run" if request.param == "in a folder" else None


def tiny():
    return simulate(tiny_population(), model=tiny_model().make, seed=SEED, engine="loop", device="cpu")


def test_a_run_ends_when_it_is_told_to(out):
    """After round 1, of five asked for; the result is tested all the same."""
    result = run(FedAvg(local=LOCAL), tiny(), rounds=5, out=out, stop=lambda done: done.index == 1)
    assert result.info["rounds"] == {"pretrain": 0, "after": 2, "asked": 5}
    assert [record["round"] for record in result.records] == [-1, 0, 1]
    assert 0 < result.accuracy <= 1


@dataclass(frozen=True)
class OnceGood(FedAvg):
    """Trained in round 1 alone: before and after, all its weights are zero."""

    def round(self, fed, state, cohort):
        if cohort.round == 1:
            return super().round(fed, self.init(fed, fed.seed), cohort)
        return replace(state, models=tree.zeros_like(state.models))


def test_other_pixels_under_the_same_labels_are_refused(tmp_path):
    """By the name of the data, with what to do: a run on a data set, and one on rows of one's own."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (40, 28, 28), dtype=np.uint8), np.arange(40) % 10

    def put(images):
        np.savez(tmp_path / "mnist.npz", x_train=images, y_train=y, x_test=x, y_test=y)
        _loaded.cache_clear()

    put(x)
    plan = {"data": "mnist", "clients": 2, "rounds": 2, "model": "mlp", "device": "cpu", "settings": {"epochs": 1}}
    session = Session.start(Experiment("solo", **plan), tmp_path / "run", tmp_path)
    next(session.rounds())
    session.close()
    put(255 - x)
    with pytest.raises(UmbelError, match=r"rows it was drawn on: mnist \(40 of .*Got mnist .*\(--data-dir\)"):
        resume(tmp_path / "run", data_dir=tmp_path)
    with pytest.raises(UmbelError, match=r"rows it was drawn on: mnist \(40 of .*Got mnist .*\(--data-dir\)"):
        Session.start(Experiment("solo", partition=str(tmp_path / "run" / "partition.npz"), **plan), tmp_path / "new",
                      tmp_path)
    put(x)
    assert len(resume(tmp_path / "run", data_dir=tmp_path).records) == 3

    sites = {name: (x / np.float32(255), y) for name in ("a", "b")}
    run(FedAvg(local=LOCAL), simulate(Population.of_sites(sites), model="mlp"), rounds=1, out=tmp_path / "own")
    sites["b"] = (1 - sites["b"][0], y)
    with pytest.raises(UmbelError, match=r"was begun on other data: .*Give it the same data"):
        resume(tmp_path / "own", fed=simulate(Population.of_sites(sites), model="mlp"), rounds=2)


def test_a_run_folder_is_no_link(tmp_path):
    """Whatever finds it by its own name would write where the link leads."""
    run(FedAvg(local=LOCAL), tiny(), rounds=1, out=tmp_path / "run")
    (tmp_path / "link").symlink_to(tmp_path / "run")
    with pytest.raises(UmbelError, match="link must be one itself"):
        resume(tmp_path / "link", fed=tiny(), rounds=2)


def test_the_best_round_is_kept(out):
    """Round 1's weights and score, although two rounds of zeros follow."""
    method = OnceGood(local=replace(LOCAL, epochs=20, rows="fit"))
    trained = []
    result = run(method, tiny(), rounds=4, keep="best", out=out,
                 on_round=lambda done: trained.append(done.state.models) if done.index == 1 else None)
    assert result.info["kept"]["round"] == 1
    assert result.info["kept"]["validation"] == result.records[2]["validation"]["value"] > 0.5
    assert torch.equal(tree.flat(result.models), tree.flat(trained[0]))
    if out:
        assert torch.equal(tree.flat(load(out, algorithm=method).models), tree.flat(trained[0]))
