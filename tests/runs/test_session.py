"""`umbel.run`: when it ends, and which round's models it keeps."""

from dataclasses import dataclass, replace

import pytest
import torch
from helpers import LOCAL, SEED, tiny_model, tiny_population

from umbel import tree
from umbel.algorithms import FedAvg
from umbel.runs.session import load, run
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
