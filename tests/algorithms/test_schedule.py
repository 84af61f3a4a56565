"""Rates that follow the round, and optimisers that methods admit."""

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from helpers import ENGINES, LOCAL, SEED, gap, tiny_model, tiny_population
from terminal import Umbel

import umbel as u
from umbel import tree
from umbel.algorithms import ALGORITHMS
from umbel.federation.door import Call
from umbel.runs.recipe import settable, settings_of

ADAM = u.Local(lr=0.01, epochs=2, batch=5, optimiser="adam", schedule="cosine")


def test_a_cosine_is_exact():
    """lr / 2 (1 + cos(pi r / R)); after the horizon it stays where it ended."""
    local = u.Local(lr=0.3, schedule="cosine", horizon=8)
    assert [local.at(r)["lr"] for r in range(8)] == [0.3 / 2 * (1 + math.cos(math.pi * r / 8)) for r in range(8)]
    assert local.at(0)["lr"] == 0.3
    assert local.at(8)["lr"] == local.at(99)["lr"] == 0.0


def test_a_step_is_exact():
    """Every so many rounds the rate is multiplied; after the horizon, if there is one, no more."""
    local = u.Local(lr=0.3, schedule="step", decay_every=3, decay_factor=0.1)
    assert [local.at(r)["lr"] for r in (0, 2, 3, 5, 6, 9)] == [0.3 * 0.1**k for k in (0, 0, 1, 1, 2, 3)]
    assert replace(local, horizon=4).at(9)["lr"] == 0.3 * 0.1


def test_options_of_a_step_are_flat_and_leave_out_defaults():
    """What is sent to nodes today stays as it is; all of it is JSON."""
    assert u.Local().at(7) == {"lr": 0.01, "momentum": 0.5}
    assert u.Local(momentum=0.9, nesterov=True, weight_decay=0.1).at(0) == {
        "lr": 0.01, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}
    assert u.Local(optimiser="adamw", weight_decay=0.1).at(0) == {
        "lr": 0.01, "optimiser": "adamw", "weight_decay": 0.1}
    assert json.loads(json.dumps(ADAM.for_run(3).at(2))) == ADAM.for_run(3).at(2)


def test_a_run_binds_the_horizon_and_keeps_what_was_given():
    """Pre-training counts; the recorded settings say 0; an explicit horizon stays, unless the run outlasts it."""
    method = u.KMeans(pretrain=2, local=ADAM)
    assert method.for_run(7).local.horizon == 7
    assert method.local.horizon == 0
    assert method.for_run(7).pretrain == 2
    assert replace(ADAM, horizon=9).for_run(7).horizon == 9
    assert LOCAL.for_run(7) is LOCAL
    with pytest.raises(u.UmbelError, match="must be at least the 10 rounds of the run, since a cosine ends"):
        replace(ADAM, horizon=9).for_run(10)
    with pytest.raises(u.UmbelError, match="A cosine schedule must know over how many rounds it runs"):
        ADAM.at(1)


def rates(method, monkeypatch, rounds=3, **options):
    """The rate of every training call of a run, by phase and round."""
    fed, seen = ENGINES["loop"](tiny_model(), tiny_population(), SEED), []
    inner = fed.perform

    def perform(call: Call):
        if "lr" in call.options and call.cohort.phase != "evaluate":
            seen.append((call.cohort.phase, call.cohort.round, call.options["lr"]))
        if call.cohort.phase == "evaluate":
            assert call.options["lr"] == method.local.lr  # fine-tuning takes the first rate
        return inner(call)

    monkeypatch.setattr(fed, "perform", perform)
    result = u.run(method, fed, rounds=rounds, fine_tune=1, **options)
    return seen, result


def test_rounds_follow_the_schedule_and_signatures_take_the_first_rate(monkeypatch):
    """FLAG: a signature, then three rounds of a cosine over three."""
    method = u.FLAG(gradient_epochs=2, cut="gap", local=ADAM)
    seen, result = rates(method, monkeypatch)
    third = [0.01 / 2 * (1 + math.cos(math.pi * r / 3)) for r in range(3)]
    assert seen == [("signature", 0, 0.01), *[("train", r, third[r]) for r in range(3)]]
    assert result.info["params"]["horizon"] == 0
    assert result.info["params"]["schedule"] == "cosine"


def test_pretraining_is_part_of_the_schedule(monkeypatch):
    """Two rounds of it and two after: a cosine over four."""
    seen, _ = rates(u.KMeans(2, pretrain=2, local=ADAM), monkeypatch, rounds=2)
    assert [rate for *_, rate in seen] == [0.01 / 2 * (1 + math.cos(math.pi * r / 4)) for r in range(4)]


def test_newcomers_are_described_at_the_rate_of_those_they_are_compared_with():
    """FL+HC's and k-means' first clients were described in the last round of pre-training."""
    asked = []
    for method in (u.FLHC(pretrain=3, cut="gap", local=ADAM), u.KMeans(2, pretrain=3, local=ADAM)):
        bound, fed = method.for_run(6), ENGINES["loop"](tiny_model(), tiny_population(), SEED)
        state = bound.init(fed, SEED)
        for r in range(3):
            state = bound.round(fed, state, u.Cohort(torch.arange(6), r))
        inner = fed.perform

        def perform(call, inner=inner):
            asked.append(call.options["lr"])
            return inner(call)

        fed.perform = perform
        bound.admit(fed, replace(state, labels=state.labels.clone().fill_(-1)), u.Cohort(torch.tensor([0]), 5, "admit"))
    assert asked == [ADAM.for_run(6).at(2)["lr"]] * 2


def test_perfedavg_schedules_the_step_that_trains(monkeypatch):
    """beta follows the round; alpha, by which clients adapt at the end, stays."""
    method = u.PerFedAvg(outer=0.1, local=u.Local(lr=0.05, momentum=0.0, epochs=1, schedule="cosine"))
    fed, seen = ENGINES["simulator"](tiny_model(), tiny_population(), SEED), []
    inner = fed.perform

    def perform(call):
        if "outer" in call.options:
            seen.append((call.options["lr"], call.options["outer"]))
        return inner(call)

    monkeypatch.setattr(fed, "perform", perform)
    u.run(method, fed, rounds=2, fine_tune=1, eval_every=9)
    assert seen == [(0.05, 0.1), (0.05, 0.1 * (1 + math.cos(math.pi / 2)) / 2)]


def test_a_schedule_changes_the_end():
    """A cosine over three rounds is not a constant rate; the same rates by hand, round after round, are."""
    fed = ENGINES["simulator"](tiny_model(), tiny_population(), SEED)
    cosine = u.run(u.FedAvg(local=ADAM), fed, rounds=3, fine_tune=0).state
    state = u.FedAvg(local=ADAM).init(fed, SEED)
    for r in range(3):
        rate = 0.01 / 2 * (1 + math.cos(math.pi * r / 3))
        by_hand = u.FedAvg(local=replace(ADAM, schedule="constant", lr=rate))
        state = by_hand.round(fed, state, u.Cohort(torch.arange(6), r))
    constant = u.run(u.FedAvg(local=replace(ADAM, schedule="constant")), fed, rounds=3, fine_tune=0).state
    assert gap(cosine.models, state.models) == 0
    assert gap(cosine.models, constant.models) > 1e-4


REFUSED = {
    "nesterov at rest": (lambda: u.Local(nesterov=True, momentum=0.0), "fedavg --set nesterov=true --set momentum=0",
                         "The 'nesterov' of local training looks ahead along the velocity, which needs a 'momentum'"),
    "nesterov adam": (lambda: u.Local(nesterov=True, optimiser="adam"), "fedavg --set nesterov=true --optimiser adam",
                      "The 'nesterov' of local training goes with optimiser 'sgd' alone. Got 'adam' instead."),
    "optimiser": (lambda: u.Local(optimiser="adamm"), "fedavg --optimiser adamm",
                  "The 'optimiser' of local training must be 'sgd' or 'adam' or 'adamw'. Got 'adamm' instead."),
    "schedule": (lambda: u.Local(schedule="cosin"), "fedavg --schedule cosin",
                 "The 'schedule' of local training must be 'constant' or 'step' or 'cosine'. Got 'cosin' instead."),
    "decay": (lambda: u.Local(weight_decay=-1), "fedavg --set weight_decay=-1",
              "at least 0 and at most 1e+30. Got -1.0 instead."),
    "fednova": (lambda: u.FedNova(local=ADAM), "fednova --optimiser adam",
                "The 'optimiser' of fednova must be sgd without nesterov, since a step's length is known of sgd's"
                " momentum alone. Got adam instead."),
    "scaffold": (lambda: u.Scaffold(local=u.Local(nesterov=True)), "scaffold --set nesterov=true --set momentum=0.5",
                 "The 'optimiser' of scaffold must be sgd without nesterov, since its control variates"),
    "perfedavg": (lambda: u.PerFedAvg(local=ADAM), "perfedavg --optimiser adam",
                  "The 'optimiser' of perfedavg must be sgd without nesterov, since what it learns"),
    "decayed perfedavg": (lambda: u.PerFedAvg(local=u.Local(weight_decay=0.1)), "perfedavg --set weight_decay=0.1",
                          "The 'weight_decay' of perfedavg must be 0, since both of its steps are plain"),
    "horizon": (lambda: u.Experiment(settings={"schedule": "cosine", "horizon": 3}),
                "fedavg --schedule cosine --set horizon=3",
                "The 'horizon' of local training must be at least the 20 rounds of the run"),
}


@pytest.mark.parametrize(("python", "words", "sentence"), REFUSED.values(), ids=REFUSED.keys())
def test_what_does_not_go_together_is_refused_alike(python, words, sentence, umbel: Umbel):
    """In one sentence, from Python and from the command line."""
    with pytest.raises(u.UmbelError) as error:
        python()
    said = umbel("run", *words.split())
    assert said.code == 2
    assert sentence in str(error.value)
    assert said.err == f"Error: {error.value}\n"


def test_fedprox_admits_all():
    """And so does every method that does not say otherwise."""
    for local in (ADAM, u.Local(nesterov=True), u.Local(optimiser="adamw", weight_decay=0.1)):
        u.FedProx(local=local)
    assert [name for name, kind in ALGORITHMS.items() if kind.optimisers == ("sgd",)] == [
        "fednova", "scaffold", "perfedavg"]


def test_misspelt_settings_get_the_near_spelling(umbel: Umbel):
    """optimizer is optimiser here."""
    with pytest.raises(u.UmbelError, match=r"named 'optimizer'. Did you mean 'optimiser'\?"):
        u.Local(optimizer="adam")
    assert "Did you mean 'schedule'?" in umbel("run", "fedavg", "--set", "shedule=cosine").err


def test_settings_go_round_through_a_recipe(tmp_path: Path):
    """Flat, a method's own first, then the server's, then training's; read back to the same method."""
    settings = {"optimiser": "adamw", "weight_decay": 0.1, "schedule": "step", "decay_every": 3, "decay_factor": 0.1,
                "horizon": 40, "server": "fedadam", "server_lr": 0.1, "mu": 0.5}
    recipe = u.Experiment(method="fedprox", settings=settings).resolved()
    (tmp_path / "recipe.toml").write_text(recipe.to_toml())
    again = u.Experiment.from_toml(tmp_path / "recipe.toml")
    assert again == recipe
    assert again.algorithm() == recipe.algorithm()
    assert settings.items() <= settings_of(again.algorithm()).items()
    names = settable(u.FedProx)
    assert names[:2] == ["mu", "aggregate"]
    assert names.index("server_momentum") + 1 == names.index("lr")


def test_names_of_training_belong_to_no_method():
    """Settings are flat: a method's own field of the same name would be read as training's, or the server's."""
    everybodys = settable(u.FedAvg)
    for kind in ALGORITHMS.values():
        assert len(set(settable(kind))) == len(settable(kind))
        assert not set(settable(kind)[: -len(everybodys)]) & set(everybodys)


def test_a_run_with_a_schedule_of_its_length_is_not_prolonged(umbel: Umbel, tmp_path: Path):
    """Its rates were those of its rounds; with a horizon it goes on as far as that."""
    small = ("--data", "digits", "--clients", 2, "--epochs", 1, "--batch", 100, "--fine-tune", 0, "--rounds", 2)
    assert umbel("run", "fedavg", *small, "--schedule", "cosine", "--out", "a").code == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()}
    said = umbel("run", "--resume", "--out", "a", "--rounds", 3)
    assert said.code == 2
    assert "follows the schedule 'cosine' over its 2 rounds, and cannot have another number of them" in said.err
    assert {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()} == before
    bound = ("--schedule", "cosine", "--set", "horizon=3")
    assert umbel("run", "fedavg", *small, *bound, "--out", "b").code == 0
    assert umbel("run", "--resume", "--out", "b", "--rounds", 4).code == 2  # beyond the horizon
    assert umbel("run", "--resume", "--out", "b", "--rounds", 3).code == 0
    assert umbel("run", "fedavg", *small[:-2], "--rounds", 3, *bound, "--out", "c").code == 0
    assert (tmp_path / "b" / "state.safetensors").read_bytes() == (tmp_path / "c" / "state.safetensors").read_bytes()


def test_own_methods_go_on_working():
    """A class of one's own that is no dataclass has schedules and optimisers, and refuses a server that it ignores."""
    class Mine(u.Algorithm):
        local = ADAM

        def init(self, fed, seed):
            return u.FedAvg().init(fed, seed)

        def round(self, fed, state, cohort):
            return u.FedAvg(local=self.local).round(fed, state, cohort)

    @dataclass(frozen=True)
    class Kept(u.FedAvg):
        k: int = u.number(3, ge=1)

    fed = ENGINES["simulator"](tiny_model(), tiny_population(), SEED)
    mine, same = (u.run(method, fed, rounds=2, fine_tune=0).state for method in (Mine(), Kept(4, local=ADAM)))
    assert torch.equal(tree.flat(mine.models), tree.flat(same.models))
    with pytest.raises(u.UmbelError, match="The 'server' of Mine must be none, since it does not declare"):
        Mine(server="fedadam")
    assert Kept(server="fedadam").server_rule.rule == "fedadam"
