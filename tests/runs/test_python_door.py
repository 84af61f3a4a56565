"""The Python door: what the command line refuses, Python refuses, in the same sentence; and what a user gets."""

import json
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import tiny_model, tiny_population
from run_folders import unsealed
from terminal import Umbel
from torch import nn

import umbel as u
from umbel.algorithms import ALGORITHMS
from umbel.federation.door import Cohort
from umbel.federation.training import train
from umbel.fields import check
from umbel.runs.options import RunOptions

LOCAL = u.Local(lr=0.1, epochs=1, batch=5)


def tiny(**more):
    return u.simulate(tiny_population(), model=tiny_model().make, seed=5, device="cpu", **more)


@pytest.fixture(scope="module")
def digits():
    return u.simulate("digits", scenario="rotation-4", clients=8, seed=3, device="cpu")


# What is refused ------------------------------------------------------------------------------------------------------

SAME = {  # in Python, on the command line, and the one sentence
    "choice": (lambda: u.PACFL(cut="treshold"), "run pacfl --set cut=treshold",
               "The 'cut' of pacfl must be 'tested' or 'silhouette' or 'gap' or 'count' or 'value'. Got 'treshold'"
               " instead."),
    "number": (lambda: u.FLAG(beta=7), "run flag --set beta=7",
               "The 'beta' of flag must be at least 0 and at most 1. Got 7.0 instead."),
    "word": (lambda: u.IFCA(first="los"), "run ifca --set first=los",
             "The 'first' of ifca must be 'loss' or 'random' or 'expert'. Got 'los' instead."),
    "training": (lambda: u.Local(lr=-0.01), "run fedavg --lr -0.01",
                 "The 'lr' of local training must be greater than 0 and at most 1e+30. Got -0.01 instead."),
    "type": (lambda: u.Local(epochs="two"), "run fedavg --set epochs=two",
             "The 'epochs' of local training must be a whole number. Got \"two\" instead."),
    "rounds": (lambda: u.run(u.FedAvg(), tiny(), rounds=0), "run fedavg --rounds 0",
               "The 'rounds' of the run must be at least 1 and at most 2147483647. Got 0 instead."),
    "fraction": (lambda: u.run(u.FedAvg(), tiny(), rounds=1, fraction=7), "run fedavg --fraction 7",
                 "The 'fraction' of the run must be greater than 0 and at most 1. Got 7.0 instead."),
    "fine-tuning": (lambda: u.run(u.FedAvgFT(), tiny(), rounds=1, fine_tune=0), "run fedavg-ft --fine-tune 0",
                    "The 'fine_tune' of fedavg-ft, judged by it, must be at least 1. Got 0 instead."),
    "keep": (lambda: u.run(u.FedAvg(), tiny(), rounds=1, keep="best"), "run fedavg --keep best",
             "The best round is chosen by validation rows, which training must leave out"),
    "keep of solo": (lambda: u.run(u.Solo(local=u.Local(rows="fit")), tiny(), rounds=1, keep="best"),
                     "run solo --keep best --set rows=fit",
                     "The 'keep' of solo, whose clients keep models of their own, must be 'last'. Got 'best' instead."),
    "uplink": (lambda: u.run(u.FedAvg(), tiny(), rounds=1, uplink="topk:0.1+quantize:8"),
               "run fedavg --uplink topk:0.1+quantize:8", "There is no uplink 'quantize'. Did you mean 'quantise'?"),
    "share": (lambda: u.run(u.FedAvg(), tiny(), rounds=1, uplink=[u.uplink.TopK(2)]), "run fedavg --uplink topk:2",
              "The 'share' of topk must be greater than 0 and at most 1. Got 2.0 instead."),
    "setting": (lambda: u.FLAG(betta=0.5), "run flag --set betta=0.5",
                "There is no setting of flag named 'betta'. Did you mean 'beta'?"),
    "method": (lambda: u.run("falg", tiny(), rounds=1), "run falg", "There is no method 'falg'. Did you mean 'flag'?"),
    "data": (lambda: u.simulate("digts"), "run fedavg --data digts", "There is no data set 'digts'."),
    "turned tables": (lambda: u.simulate("diabetes", scenario="rotation-4", clients=8),
                      "run fedavg --data diabetes --scenario rotation-4 --clients 8",
                      "rotation-4 changes images, and the set diabetes has none: take a scenario that only deals rows"
                      " out, such as dirichlet."),
    "noise on tables": (lambda: u.simulate("diabetes", scenario="dirichlet:alpha=1+noise", clients=8),
                        "run fedavg --data diabetes --scenario dirichlet:alpha=1+noise --clients 8",
                        "noise changes uint8 images, and the set diabetes has none"),
    "swapped numbers": (lambda: u.simulate("diabetes", scenario="swap-6", clients=8),
                        "run fedavg --data diabetes --scenario swap-6 --clients 8",
                        "swap-6 changes labels, and the set diabetes has none"),
    "too few bins": (lambda: u.simulate("diabetes", scenario="label-4", clients=8),
                     "run fedavg --data diabetes --scenario label-4 --clients 8",
                     "label-4 needs at least 9 labels. Got 4 in diabetes instead."),
    "a network of images": (lambda: u.simulate("diabetes", clients=8, model="lenet5"),
                            "run fedavg --data diabetes --clients 8 --model lenet5",
                            "The model 'lenet5' takes images (channels, height, width). Got inputs of shape (10,)"),
    "forces of classes": (lambda: u.run("cflgt", u.simulate("diabetes", clients=8), rounds=1),
                          "run cflgt --data diabetes --clients 8",
                          "Gradient trajectories are forces of classes, and this model predicts none"),
    "metric": (lambda: u.simulate("digits", metric="acuracy"), "run fedavg --metric acuracy",
               "There is no metric 'acuracy'. Did you mean 'accuracy'?"),
    "another's metric": (lambda: u.simulate("diabetes", clients=8, metric="auc"),
                         "run fedavg --data diabetes --clients 8 --metric auc",
                         "The metric of the objective 'regress' must be mae or rmse or r2. Got 'auc' instead."),
    "weights": (lambda: u.simulate("digits", class_weights="1,x"), "run fedavg --class-weights 1,x",
                "The 'weights' of a classification must be \"balanced\", or a number from 0 for each of its 10"),
    "weights of numbers": (lambda: u.simulate("diabetes", clients=8, class_weights="balanced"),
                           "run fedavg --data diabetes --clients 8 --class-weights balanced",
                           "Weights are of classes, and the targets of the objective 'regress' are none."),
    "a network of series": (lambda: u.simulate("diabetes", clients=8, model="gru"),
                            "run fedavg --data diabetes --clients 8 --model gru",
                            "The model 'gru' takes series (time, features) or int64 tokens (places). Got inputs of"),
    "engine": (lambda: u.simulate(tiny_population(), engine="lop"), "run fedavg --engine lop", "no engine 'lop'"),
    "precision": (lambda: u.simulate(tiny_population(), precision="float16"), "run fedavg --precision float16",
                  "The 'precision' of the run must be 'float32' or 'tf32' or 'bf16'. Got 'float16' instead."),
    "device": (lambda: u.simulate(tiny_population(), device="gpu"), "run fedavg --device gpu",
               "The 'device' of the run must be 'auto' or 'cpu' or 'cuda'. Got 'gpu' instead."),
    "seed": (lambda: u.simulate(tiny_population(), seed=-1), "run fedavg --seed -1", "must be at least 0 and less"),
}


@pytest.mark.parametrize(("python", "words", "sentence"), SAME.values(), ids=SAME.keys())
def test_python_and_the_command_line_refuse_alike(python, words, sentence, umbel: Umbel):
    """One UmbelError with the sentence that the command line prints."""
    with pytest.raises(u.UmbelError) as error:
        python()
    said = umbel(*words.split())
    assert said.code == 2
    assert sentence in str(error.value)
    assert said.err == f"Error: {error.value}\n"


@pytest.mark.parametrize("name", ALGORITHMS)
def test_local_training_is_given_by_name_in_every_method(name):
    """By position it would land in another setting; and a method knows the name that a person types."""
    kind = ALGORITHMS[name]
    with pytest.raises(u.UmbelError, match=rf"Local training is given by name: {kind.__name__}\(local=Local"):
        kind(u.Local())
    assert replace(kind(local=LOCAL).local, norms="shared") == LOCAL  # FedBN's are private, whatever is given
    assert kind.name == name


def test_every_number_of_every_method_has_a_rule():
    """A setting without a rule would take any value."""
    for kind in [*ALGORITHMS.values(), u.Local, RunOptions]:
        for each in fields(kind):
            if type(each.default) in (int, float):
                assert each.metadata, (kind, each.name)


def test_settings_of_training_are_pointed_to_their_place():
    """lr is Local's, whatever the method."""
    with pytest.raises(u.UmbelError, match=r"The 'lr' of local training is set by FLAG\(local=Local\(lr=...\)\)"):
        u.FLAG(lr=0.1)
    with pytest.raises(u.UmbelError, match=r"There is no setting of local training named 'momentun'. Did you mean"):
        u.Local(momentun=0.9)


@pytest.mark.parametrize("ask", [
    lambda: u.Experiment(roundss=3), lambda: u.rounds(u.FedAvg(), None, roundss=3),
    lambda: u.compare(["fedavg"], data="digits", roundss=3)])
def test_a_misspelt_option_of_a_run_gets_the_near_spelling(ask):
    """Not Python's unexpected keyword argument of some __init__."""
    with pytest.raises(u.UmbelError, match=r"There is no setting of the run named 'roundss'\. Did you mean 'rounds'\?"):
        ask()


def test_numbers_out_of_arrays_and_whole_numbers_are_numbers():
    """np.float64 is a number, 1 is 1.0 where a number is wanted, and neither is a list or true."""
    assert u.Local(lr=np.float64(0.5)) == u.Local(lr=0.5)
    assert type(u.FLAG(beta=1).beta) is float
    for wrong in ([0.1], True, None, "0.1"):
        with pytest.raises(u.UmbelError, match="must be a number"):
            u.Local(lr=wrong)


def test_own_methods_are_checked_as_well():
    """A dataclass of one's own with `number` and `choice`, under its class's name."""
    @dataclass(frozen=True)
    class Mine(u.FedAvg):
        k: int = u.number(3, ge=1)

    with pytest.raises(u.UmbelError, match=r"The 'k' of Mine must be at least 1 and at most 2147483647."
                                           r" Got 0 instead."):
        Mine(k=0)
    assert u.run(Mine(local=LOCAL), tiny(), rounds=1, fine_tune=0).info["method"] == "Mine"


def test_an_own_one_shot_method_is_told_which_cuts_there_are():
    """A class attribute is no checked field: the registry's sentence comes when clients are grouped."""
    @dataclass(frozen=True)
    class Mine(u.PACFL):
        cut: str = "gapp"

    with pytest.raises(u.UmbelError, match=r"There is no cut 'gapp'\. Did you mean 'gap'\?"):
        u.run(Mine(local=LOCAL), tiny(), rounds=1)
    with pytest.raises(u.UmbelError, match="The cut 'knee' is chosen by short trainings, and this method makes none"):
        u.run(Mine(cut="knee", local=LOCAL), tiny(), rounds=1)


def test_a_type_that_only_a_checker_sees_does_not_hide_the_rules():
    """Annotations that cannot be read at run time leave types unchecked, not ranges."""
    @dataclass(frozen=True)
    class Odd:
        k: "Nowhere" = u.number(3, ge=1)  # noqa: F821

    with pytest.raises(u.UmbelError, match="at least 1"):
        check(Odd(0), "odd")


def test_a_tasks_options_do_not_vanish():
    """momentun=0.9 would train without momentum: it is refused, with the near spelling."""
    fed = tiny()
    call = {"work": LOCAL.work, "shared": {"model": fed.net.init(0)}, "lr": 0.1}
    with pytest.raises(u.UmbelError, match=r"has no option .momentun.\. Did you mean .momentum.\?"):
        fed.map(train, Cohort(torch.tensor([0]), 0), **call, momentun=0.9)
    with pytest.raises(u.UmbelError, match=r"has no option 'zzz'. It takes lr, momentum, .*, only, send, keep\."):
        fed.map(train, Cohort(torch.tensor([0]), 0), **call, zzz=1)


def test_workers_below_one_are_refused():
    """Nobody would work."""
    with pytest.raises(u.UmbelError, match=r"The 'workers' of a simulation must be at least 1 and at most 1000."
                                           r" Got 0 instead."):
        u.simulate("digits", workers=0)


def test_a_wrong_name_of_the_package_gets_the_near_spelling():
    """umbel.FedAgv is told what it should have been."""
    with pytest.raises(AttributeError, match=r"Did you mean 'FedAvg'?"):
        _ = u.FedAgv


# Loops of one's own -----------------------------------------------------------------------------------------------


def test_a_run_after_another_on_one_federation_starts_afresh():
    """What FedAvg's clients kept is not SOLO's: its accuracy is that of SOLO alone."""
    alone = u.run(u.Solo(local=LOCAL), tiny(), rounds=3, fine_tune=0)
    fed = tiny()
    u.run(u.FedAvg(local=LOCAL), fed, rounds=5, fine_tune=0)
    after = u.run(u.Solo(local=LOCAL), fed, rounds=3, fine_tune=0)
    assert after.info["score"] == alone.info["score"]


@pytest.mark.parametrize("name", ["fedavg", "solo", "lg", "fedavg-ft"])
def test_a_loop_that_is_left_early_has_the_result_of_a_run_of_that_length(name):
    """All but the rounds that were asked for and the cost of evaluations: state, three accuracies, clusters."""
    method = ALGORITHMS[name](local=LOCAL)
    fed, records = tiny(), []
    for done in u.rounds(method, fed, rounds=9):
        records.append(done.record)
        if done.index == 2:
            break
    early, whole = u.finish(method, fed, done.state, records), u.run(method, tiny(), rounds=3)
    assert early.info["rounds"] == {"pretrain": 0, "after": 3, "asked": 9}
    assert early.info["score"] == whole.info["score"]
    assert early.clusters == whole.clusters
    assert early.info["bytes"]["up"] == whole.info["bytes"]["up"]


def test_a_result_needs_a_round():
    """Before the first, there is nothing to test."""
    fed = tiny()
    first = next(u.rounds(u.FedAvg(local=LOCAL), fed, rounds=2))
    with pytest.raises(u.UmbelError, match="A result needs at least one round"):
        u.finish(u.FedAvg(local=LOCAL), fed, first.state, [first.record])
    assert first.accuracy is None


def test_the_last_evaluation_is_asked_once():
    """Models and answers of the last round's evaluation are billed for three accuracies, not for four."""
    fed = tiny()
    records = [done.record for done in u.rounds(u.FedAvg(local=LOCAL), fed, rounds=2)]
    cost = [sum(records[k]["bytes"]["evaluate"]["down"].values()) for k in (1, 2)]
    assert cost[1] == 3 * cost[0]


def test_hooks_see_every_round_and_can_stop():
    """`on_round` gets each round once; `stop` ends after the one for which it is true."""
    seen = []
    result = u.run(u.FedAvg(local=LOCAL), tiny(), rounds=9, on_round=lambda done: seen.append(done.index),
                   stop=lambda done: done.index == 3)
    assert seen == [0, 1, 2, 3]
    assert result.info["rounds"]["after"] == 4
    assert sorted(result.curve) == [1, 2, 3, 4]


def test_progress_is_shown(capsys):
    """Plain lines where there is no terminal."""
    u.run(u.FedAvg(local=LOCAL), tiny(), rounds=2, progress=True)
    assert "FedAvg" not in (out := capsys.readouterr().out)
    assert "fedavg  round 2/2  clusters 1  accuracy" in out


def test_the_best_round_is_kept(tmp_path):
    """The state is that of the round with the best validation score, the first of equal ones; the folder agrees."""
    method = u.FedAvg(local=u.Local(lr=2.0, epochs=3, batch=5, rows="fit"))  # so large a step that accuracy jumps
    states = {}
    whole = list(u.rounds(method, tiny(), rounds=8, keep="best"))
    for done in whole[1:]:
        states[done.index] = (done.record["validation"]["value"], done.state)
    best = max(states, key=lambda index: (states[index][0], -index))
    assert best < 7  # else the last would do
    in_memory = u.run(method, tiny(), rounds=8, keep="best")
    on_disk = u.run(method, tiny(), rounds=8, keep="best", out=tmp_path / "run")
    loaded = u.load(tmp_path / "run", model=tiny_model().make)
    for result in (in_memory, on_disk, loaded):
        assert result.info["kept"] == {"round": best, "validation": states[best][0]}
        assert all(torch.equal(result.models[name], leaf) for name, leaf in states[best][1].models.items())
    assert in_memory.info["score"]["last_local"] is None
    assert "best round" in in_memory.info["score"]["missing"]["last_local"]


def test_the_best_round_survives_a_stop(tmp_path):
    """Stopped after its best round and resumed, a run keeps the same one."""
    method = u.FedAvg(local=u.Local(lr=2.0, epochs=3, batch=5, rows="fit"))
    whole = u.run(method, tiny(), rounds=8, keep="best")

    def die(done):
        if done.index == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        u.run(method, tiny(), rounds=8, keep="best", out=tmp_path / "run", on_round=die)
    again = u.resume(tmp_path / "run", fed=tiny())
    assert again.info["kept"] == whole.info["kept"]
    assert again.info["score"] == whole.info["score"]
    assert all(torch.equal(again.models[name], leaf) for name, leaf in whole.models.items())


def test_a_newcomer_gets_the_model_that_was_kept(tmp_path, digits):
    """Of the best round, not of the last."""
    method = u.FedAvg(local=u.Local(lr=2.0, momentum=0.9, epochs=2, batch=20, rows="fit"))
    result = u.run(method, digits, rounds=6, keep="best", out=tmp_path / "run")
    assert result.info["kept"]["round"] < 5  # else the last would do
    people = digits.clients.population
    rows = people.pool.x[people.train[3]], people.pool.y[people.train[3]]
    placed = u.admit(tmp_path / "run", rows)
    assert all(torch.equal(placed.model[name], leaf[0]) for name, leaf in result.models.items())


def test_clustering_is_timed_wherever_it_happens():
    """After rounds of pre-training as well as before the first, and without the time that clients took."""
    for method in (u.CFLGT(pretrain=2, local=LOCAL), u.KMeans(2, pretrain=2, local=LOCAL),
                   u.PACFL(local=LOCAL), u.FedSEM(2, local=LOCAL),
                   u.FLAG(gradient_epochs=1, validators=3, validation_rounds=1, local=LOCAL)):
        result = u.run(method, tiny(), rounds=1, fine_tune=0)
        seconds = result.info["seconds"]
        assert 0 < seconds["clustering"] < seconds["total"]
        spent = [record["seconds"].get("clustering", 0) for record in result.records]
        assert [k for k, each in enumerate(spent) if each] == [getattr(method, "pretrain", 0) or (
            1 if isinstance(method, u.FedSEM) else 0)]
        for record in result.records:
            phases = sum(each for name, each in record["seconds"].items() if name != "wall")
            assert phases <= record["seconds"]["wall"]


# Run folders ------------------------------------------------------------------------------------------------------


def test_a_run_in_a_folder_is_the_run_of_the_command_line(tmp_path, umbel: Umbel):
    """The same recipe, state and scores."""
    options = {"scenario": "rotation-4", "clients": 8, "seed": 3, "device": "cpu"}
    result = u.run(u.FLAG(cut="gap", local=u.Local(epochs=1)), u.simulate("digits", **options), rounds=2,
                   out=tmp_path / "python", fine_tune=1)
    words = [f"--{name}={value}" for name, value in options.items()]
    assert umbel("run", "flag", "--set", "cut=gap", "--epochs", 1, "--rounds", 2, *words, "--out", "typed").code == 0
    typed = tmp_path / "typed"
    for name in ("recipe.toml", "state.safetensors", "memory.safetensors", "evidence.safetensors", "model.json",
                 "clusters.json"):
        assert (typed / name).read_bytes() == (tmp_path / "python" / name).read_bytes(), name
    assert u.load(typed).info["score"] == result.info["score"]
    assert u.resume(typed).info["score"] == result.info["score"]  # finished: it is loaded


@pytest.mark.parametrize("name", ["flag", "solo", "lg", "fedsoft", "scaffold"])
def test_what_is_loaded_is_what_was_run(name, digits, tmp_path):
    """State, records, labels and every client's model; saving what was loaded gives the same folder."""
    result = u.run(ALGORITHMS[name](local=u.Local(epochs=1)), digits, rounds=2, fine_tune=0)
    folder = result.save(tmp_path / "run")
    loaded = u.load(folder)
    assert loaded.info == result.info
    assert loaded.clusters == result.clusters
    assert loaded.records == json.loads(json.dumps(result.records))
    assert loaded.algorithm == result.algorithm
    assert torch.equal(loaded.labels, result.labels)
    x = digits.clients.population.pool.x[:40]
    for client in loaded.names:
        assert (loaded.predict(x, client=client) == result.predict(x, client=client)).all()
    again = loaded.save(tmp_path / "again")
    for file in folder.iterdir():
        assert (again / file.name).read_bytes() == file.read_bytes(), file.name


@pytest.mark.parametrize("model", ["mlp", "lenet5"])
def test_a_clusters_model_is_a_plain_module_with_its_normalisation(model, tmp_path):
    """Its accuracy on a client's own test rows is the one that the result says; weights, mean and std travel in it."""
    fed = u.simulate("digits", scenario="rotation-4", clients=4, model=model, seed=1, device="cpu")
    result = u.load(u.run(u.FedAvg(local=u.Local(epochs=1)), fed, rounds=1, fine_tune=0).save(tmp_path / "run"))
    module = result.model(0)
    assert isinstance(module, nn.Module)
    assert {"mean", "std"} <= set(module.state_dict())
    people = fed.clients.population
    for i, client in enumerate(result.clusters["clients"]):
        x, y = people.pool.x[people.test[i]], people.pool.y[people.test[i]]
        hits = (module(torch.from_numpy(x)).argmax(1).numpy() == y).mean()
        assert hits == pytest.approx(client["score"]["cluster_model"])
        assert (result.predict(x, cluster=0) == result.predict(x.astype(np.float32) / 255, client=client["name"])).all()
    about = json.loads((tmp_path / "run" / "model.json").read_text())
    assert (about["name"], about["objective"]["classes"]) == (model, 10)
    assert about["mean"] == module.mean.flatten().tolist()


def test_asking_for_a_model_that_is_not_there(digits):
    """One sentence each."""
    result = u.run(u.LGFedAvg(local=u.Local(epochs=1)), digits, rounds=1, fine_tune=0)
    x = digits.clients.population.pool.x[:2]
    for ask, sentence in {
        (lambda: result.model()): "Say whose model",
        (lambda: result.model(0, client="c000")): "Say whose model",
        (lambda: result.model(7)): "The clusters of this run are 0 to 0. Got 7 instead.",
        (lambda: result.model(0)): "The method 'lg' has no model for a whole cluster",
        (lambda: result.model(client="c01")): "There is no client 'c01'. Did you mean 'c001'?",
        (lambda: result.predict(x[0], client="c000")): r"Images must be \(rows, 1, 8, 8\). Got \(1, 8, 8\) instead.",
        (lambda: result.predict(np.where(np.arange(2)[:, None, None, None], np.nan, x), client="c000")):
            "must be finite. It is not for 1 of 2 rows, as in row 1: look for numbers there",
        (lambda: result.to_pandas("round")): "A table is of 'clients' or of 'rounds'. Got 'round' instead.",
    }.items():
        with pytest.raises(u.UmbelError, match=sentence):
            ask()


def test_own_networks_and_methods_are_saved_loaded_and_resumed(tmp_path):
    """A recipe cannot name them: they are given again, and asked for in a sentence where they are not."""
    @dataclass(frozen=True)
    class Mine(u.FedAvg):
        pass

    whole = u.run(Mine(local=LOCAL), tiny(), rounds=4)

    def die(done):
        if done.index == 1:
            raise KeyboardInterrupt

    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        u.run(Mine(local=LOCAL), tiny(), rounds=4, out=folder, on_round=die)
    with pytest.raises(u.UmbelError, match="There is no method 'Mine'"):
        u.resume(folder, fed=tiny())
    with pytest.raises(u.UmbelError, match=r"is from another recipe: its 'lr' is 0.1, asked for is 0.5"):
        u.resume(folder, fed=tiny(), algorithm=Mine(local=u.Local(lr=0.5, epochs=1, batch=5)))
    result = u.resume(folder, fed=tiny(), algorithm=Mine(local=LOCAL))
    assert result.info["score"] == whole.info["score"]
    assert all(torch.equal(result.models[name], leaf) for name, leaf in whole.models.items())
    with pytest.raises(u.UmbelError, match="is of a method of your own, 'Mine': give it as"):
        u.load(folder)
    loaded = u.load(folder, algorithm=Mine(local=LOCAL))
    with pytest.raises(u.UmbelError, match="This run's network was your own: load it again as"):
        loaded.model(0)
    again = u.load(folder, algorithm=Mine(local=LOCAL), model=tiny_model().make)
    x = tiny_population().pool.x[:9]
    assert (again.predict(x, cluster=0) == result.predict(x, cluster=0)).all()


def test_an_early_stop_in_a_folder_is_a_finished_run_that_can_be_prolonged(tmp_path, digits):
    """The folder says how far it came; with more rounds it ends where a longer run would have."""
    method, folder = u.FedAvg(local=u.Local(epochs=1)), tmp_path / "run"
    early = u.run(method, digits, rounds=9, out=folder, stop=lambda done: done.index == 1)
    assert u.load(folder).info["rounds"] == {"pretrain": 0, "after": 2, "asked": 9} == early.info["rounds"]
    assert json.loads((folder / "rounds.jsonl").read_text().splitlines()[-1])["final"]
    assert u.report(folder) == folder / "report.html"
    longer, whole = u.resume(folder, rounds=4), u.run(method, digits, rounds=4)
    assert longer.info["rounds"] == {"pretrain": 0, "after": 4}
    assert all(torch.equal(longer.models[name], leaf) for name, leaf in whole.models.items())


def test_a_folder_without_a_run_is_one_sentence(tmp_path):
    """Neither to load nor to resume."""
    with pytest.raises(u.UmbelError, match=r"There is no finished run in .*: it holds no result.json"):
        u.load(tmp_path)
    with pytest.raises(u.UmbelError, match="There is no run to resume in"):
        u.resume(tmp_path)


def test_a_comparison_from_python_is_the_command_lines(tmp_path, umbel: Umbel):
    """Named data over seeds, in memory and in a folder: the same lines as compare.json, and an object's settings."""
    choices = {"data": "digits", "scenario": "rotation-4", "clients": 8, "rounds": 1, "device": "cpu"}
    methods = ["fedavg", u.FLAG(cut="gap", local=u.Local(epochs=1))]
    drawn = u.compare(methods, seeds=2, settings={"epochs": 1}, **choices)
    kept = u.compare(methods, seeds=2, settings={"epochs": 1}, out=tmp_path / "python", **choices)
    words = [f"--{name}={value}" for name, value in choices.items()]
    assert umbel("compare", "fedavg", "flag", "--set", "flag.cut=gap", "--epochs", 1, "--seeds", 2, *words, "--out",
                 "typed").code == 0
    typed = json.loads((tmp_path / "typed" / "compare.json").read_text())
    for lines in (drawn.lines, kept.lines, json.loads((tmp_path / "python" / "compare.json").read_text())):
        assert [{**line, "seconds": 0} for line in lines] == [{**line, "seconds": 0} for line in typed]
    assert "flag" in repr(drawn)
    assert "flag" in drawn._repr_html_()
    assert drawn.to_pandas().loc["flag", "ari"] == 1
    assert u.report(tmp_path / "python").is_file()


def test_a_comparison_on_ones_own_federation():
    """Every method starts afresh; seeds belong to the federation."""
    fed = tiny()
    lines = u.compare([u.FedAvg(local=LOCAL), u.Solo(local=LOCAL)], fed, rounds=2).lines
    assert lines[1]["score"] == u.run(u.Solo(local=LOCAL), tiny(), rounds=2).accuracy
    with pytest.raises(u.UmbelError, match="A federation has the seed it was made with"):
        u.compare(["fedavg"], fed, rounds=2, seeds=3)


def test_a_newcomer_from_arrays(tmp_path, digits, umbel: Umbel):
    """As from the npz file with the same rows; its model is a plain module."""
    folder = u.run(u.PACFL(local=u.Local(epochs=1)), digits, rounds=1, fine_tune=0).save(tmp_path / "run")
    people = digits.clients.population
    rows = [people.pool.x[people.train[3]], people.pool.y[people.train[3]], people.pool.x[people.test[3]],
            people.pool.y[people.test[3]]]
    np.savez(tmp_path / "new.npz", **dict(zip(("x_train", "y_train", "x_test", "y_test"), rows, strict=True)))
    one, other = u.admit(folder, tuple(rows), name="new"), u.admit(folder, tmp_path / "new.npz")
    assert (one.cluster, one.members, one.accuracy) == (other.cluster, other.members, other.accuracy)
    hits = (one.module(torch.from_numpy(rows[2])).argmax(1).numpy() == rows[3]).mean()
    assert hits == pytest.approx(one.accuracy)
    assert "tensor" not in repr(one)
    with pytest.raises(u.UmbelError, match="Got 3 arrays"):
        u.admit(folder, tuple(rows[:3]))


def test_objects_are_shown_in_a_line(digits):
    """No weights, no addresses; notebooks get a table; names are escaped there."""
    result = u.run(u.FedAvg(local=u.Local(epochs=1)), digits, rounds=1, fine_tune=0)
    assert repr(digits) == ("<Simulator of 8 clients: digits, rotation-4; model mlp, 15,010 parameters, on cpu>")
    assert repr(result).startswith("<Result fedavg on digits, rotation-4: accuracy ")
    assert len(repr(result)) < 120
    for html in (digits._repr_html_(), result._repr_html_()):
        assert html.startswith("<div><b>")
        assert "<table>" in html
    assert "&lt;i&gt;" in replace(result, info={**result.info, "data": "<i>"})._repr_html_()


def test_a_report_of_results_in_memory(tmp_path, digits, monkeypatch):
    """They are written to a folder that is gone afterwards; the page lies where it was asked for."""
    monkeypatch.chdir(tmp_path)
    results = [u.run(method, digits, rounds=1, fine_tune=0) for method in ("fedavg", "pacfl")]
    assert u.report(results) == Path("report.html")
    assert "pacfl" in (tmp_path / "report.html").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_examples_import_from_umbel_alone():
    """A user needs to know one page of names."""
    for path in (Path(__file__).parents[2] / "examples").rglob("*.py"):
        for line in path.read_text().splitlines():
            words = line.split()
            if words[:1] == ["from"] and words[1].startswith("umbel"):
                assert words[1] in ("umbel", "umbel.flower"), (path, line)
            if words[:1] == ["import"] and words[1].startswith("umbel"):
                assert words[1] in ("umbel", "umbel.flower"), (path, line)


def test_a_run_through_an_uplink(tmp_path, umbel: Umbel):
    """By text or by objects, in Python or typed: one run; the recipe, the result and the screen say so."""
    said = umbel("run", "fedavg", "--clients", "4", "--rounds", "2", "--epochs", "1", "--device", "cpu", "--uplink",
                 "topk:0.10+quantise", "--out", str(tmp_path / "typed"))
    assert "Uplink: topk:0.1+quantise:8.\n" in said.out
    typed = u.load(tmp_path / "typed")
    assert typed.info["uplink"] == typed.options.uplink == "topk:0.1+quantise:8"
    assert 'uplink = "topk:0.1+quantise:8"' in (tmp_path / "typed" / "recipe.toml").read_text()
    fed = u.simulate("digits", clients=4, device="cpu")
    local = u.Local(epochs=1)
    listed = u.run(u.FedAvg(local=local), fed, rounds=2, uplink=[u.uplink.TopK(0.1), u.uplink.Quantise(8)])
    free = u.run(u.FedAvg(local=local), fed, rounds=2)
    assert all(torch.equal(listed.models[name], leaf) for name, leaf in typed.models.items())
    assert listed.info["bytes"]["up"] == typed.info["bytes"]["up"] < free.info["bytes"]["up"] / 6
    assert free.info["uplink"] == ""
    assert free.info["bytes"]["down"] == listed.info["bytes"]["down"]


def test_a_run_through_an_uplink_is_resumed_through_it(tmp_path):
    """A run of three rounds that stopped after two ends as one that did not."""
    chain = "topk:0.3+quantise:16"
    whole = u.run(u.FedAvg(local=LOCAL), tiny(), rounds=3, uplink=chain, out=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        u.run(u.FedAvg(local=LOCAL), tiny(), rounds=3, uplink=chain, out=tmp_path / "half", on_round=_interrupt)
    again = u.resume(tmp_path / "half", fed=tiny())
    assert all(torch.equal(again.models[name], leaf) for name, leaf in whole.models.items())
    assert again.info["bytes"] == whole.info["bytes"]


def _interrupt(done: u.Round) -> None:
    if done.index == 1:
        raise KeyboardInterrupt


def test_a_folder_that_is_older_than_an_option_is_resumed(tmp_path):
    """Its recipe does not name the option, which then has its default."""
    with pytest.raises(KeyboardInterrupt):
        u.run(u.FedAvg(local=LOCAL), tiny(), rounds=3, out=tmp_path / "old", on_round=_interrupt)
    recipe = tmp_path / "old" / "recipe.toml"
    recipe.write_text(recipe.read_text().replace('uplink = ""\n', ""))
    unsealed(tmp_path / "old")
    assert u.resume(tmp_path / "old", fed=tiny()).info["rounds"]["after"] == 3


def test_a_newcomer_is_placed_through_the_uplink_of_the_run(tmp_path, monkeypatch):
    """Its description leaves it as the others' did; what it tunes for itself does not."""
    fed = u.simulate("digits", scenario="rotation-4", clients=8, device="cpu")
    u.run(u.PACFL(local=u.Local(epochs=1)), fed, rounds=1, uplink="quantise:8", out=tmp_path / "run")
    people = fed.clients.population
    rows = people.train[3]
    seen = {}
    inner = u.Federation._bill_up

    def bill(self, call, names, chunk):
        seen[call.task.name] = call.uplinks
        inner(self, call, names, chunk)

    monkeypatch.setattr(u.Federation, "_bill_up", bill)
    placed = u.admit(tmp_path / "run", (people.pool.x[rows], people.pool.y[rows]), epochs=1)
    assert placed.members > 0
    assert seen["raw_parts"] == (u.uplink.Quantise(8),)
    assert seen["fine_tune"] == ()
