"""Clients that lie: what they send, who they are, and that the others are judged."""

from statistics import mean

import pytest
import torch
from helpers import ENGINES, LOCAL, SEED, SIZES, TRUTH, tiny_model, tiny_population
from terminal import Umbel

import umbel as u
from umbel import tree
from umbel.clustering.signatures import class_vectors
from umbel.data.clients import Work
from umbel.federation.attackers import Attackers, parse, places
from umbel.federation.door import Cohort
from umbel.federation.phases import SIGNATURE
from umbel.federation.training import train
from umbel.runs.evaluate import ari
from umbel.tree import Held

engines = pytest.mark.parametrize("engine", ENGINES)
EVERYBODY = torch.arange(len(SIZES))


def fed(engine="loop", text=""):
    """Six clients, of whom those at places 1 and 4 lie."""
    made = ENGINES[engine](tiny_model(), tiny_population(), SEED)
    made.arrive(0)
    made.bound = 0.0
    if text:
        made.attackers = Attackers(parse(text), torch.tensor([False, True, False, False, True, False]), SEED)
    return made


def trained(there, held=True):
    """What all six send after training from one model, or from two."""
    starts = tree.stack([there.net.init(0), there.net.init(1)])
    given = {"each": {"model": Held(starts, torch.tensor(TRUTH))}} if held else {
        "shared": {"model": tree.take(starts, 0)}}
    sent = there.map(train, Cohort(EVERYBODY, 0), work=Work(epochs=2, batch=5), lr=0.1, **given).answers["model"]
    return sent, tree.take(starts, torch.tensor(TRUTH if held else [0] * 6))


@engines
@pytest.mark.parametrize(("text", "by"), [("2:scaled:100", 100), ("2:scaled", 10), ("2:flipped:3", -3),
                                          ("2:flipped", -1)])
def test_an_attackers_update_is_moved_along_its_line(engine, text, by):
    """Start + by (end - start); of the honest not a bit is changed."""
    (lies, starts), (ends, _) = trained(fed(engine, text)), trained(fed(engine))
    liars, others = torch.tensor([1, 4]), torch.tensor([0, 2, 3, 5])
    for name, start in starts.items():
        assert torch.equal(lies[name][others], ends[name][others])
        assert torch.allclose(lies[name][liars], (start + by * (ends[name] - start))[liars], atol=1e-5)


def test_what_was_sent_to_all_is_a_start_too():
    """A shared model, as where clients describe themselves."""
    (lies, starts), (ends, _) = trained(fed("loop", "2:scaled:5"), held=False), trained(fed(), held=False)
    assert all(torch.allclose(lies[name][1], (start + 5 * (ends[name] - start))[1], atol=1e-6)
               for name, start in starts.items())


@engines
def test_a_forged_signature_is_noise_of_the_same_length(engine):
    """Unit vectors stay such, classes and sizes are true, the honest tell what they did; and training is honest."""
    def told(there, phase):
        return there.map(class_vectors, Cohort(EVERYBODY, 0, phase), rank=1).answers

    honest, lies = told(fed(engine), SIGNATURE), told(fed(engine, "2:forged"), SIGNATURE)
    assert torch.equal(honest["basis"].values[[0, 2, 3, 5]], lies["basis"].values[[0, 2, 3, 5]])
    assert torch.equal(honest["basis_class"].values, lies["basis_class"].values)
    theirs = lies["basis"].values[[1, 4]]
    assert torch.allclose(theirs.norm(dim=-1), torch.ones(2, 3), atol=1e-5)
    assert float((theirs - honest["basis"].values[[1, 4]]).abs().min()) > 0
    assert torch.equal(told(fed(engine, "2:forged"), SIGNATURE)["basis"].values, lies["basis"].values)
    (after, _), (ends, _) = trained(fed(engine, "2:forged")), trained(fed(engine))
    assert all(torch.equal(after[name], leaf) for name, leaf in ends.items())


def test_mislabelled_clients_learn_the_last_class_for_the_first():
    """Labels of the two that the seed draws are 9 - y; nobody else's rows are changed, nor are the groups."""
    drawn = {"scenario": "rotation-4", "clients": 8, "seed": 3, "device": "cpu"}
    honest, lied = u.simulate("digits", **drawn), u.simulate("digits", attack="2:mislabelled", **drawn)
    who = places(parse("2:mislabelled"), 8, 3)
    assert [name for name, own in zip(lied.names, lied.honest.tolist(), strict=True) if not own] == [
        f"c{i:03d}" for i in who] == lied.provenance.scenario["attackers"]
    for i in range(8):
        (x, y), (now_x, now_y) = (each.clients.gather(each.clients.rows(i, "train")) for each in (honest, lied))
        assert torch.equal(x, now_x)
        assert torch.equal(now_y, 9 - y if i in who else y)
    assert honest.provenance.truth == lied.provenance.truth


def test_scores_and_agreement_are_of_the_honest(tmp_path):
    """The two who lie have no score, and their places in clusters count for nothing; a resumed run knows them still."""
    def simulated():
        return u.simulate("digits", scenario="rotation-4", clients=8, seed=3, device="cpu", attack="2:scaled:3")

    method = u.Oracle(TRUTH[:4] * 2, local=u.Local(epochs=1))
    result = u.run(method, simulated(), rounds=1, fine_tune=0, out=tmp_path / "run")
    liars = {f"c{i:03d}" for i in places(parse("2:scaled:3"), 8, 3)}
    assert set(result.info["scenario_facts"]["attackers"]) == liars
    final = result.records[-1]["final"]["cluster_model"]["clients"]
    assert set(final) == {f"c{i:03d}" for i in range(8)} - liars
    assert result.accuracy == pytest.approx(mean(own["score"] for own in final.values()))
    honest = [i for i in range(8) if f"c{i:03d}" not in liars]
    labels, truth = result.state.labels.tolist(), simulated().provenance.truth
    apart = ari([labels[i] for i in honest], [truth[i] for i in honest])
    assert result.info["clusters"]["ari"] == result.records[-1]["ari"] == apart
    longer = u.resume(tmp_path / "run", rounds=2, fed=simulated(), algorithm=method)
    assert set(longer.records[-1]["final"]["cluster_model"]["clients"]) == set(final)


def test_an_attack_is_typed_as_in_python(tmp_path, umbel: Umbel):
    """The recipe has it, and the run can be done again from its folder alone."""
    umbel("run", "fedavg", "--clients", "4", "--rounds", "1", "--epochs", "1", "--device", "cpu", "--attack",
          "1:flipped:2", "--out", str(tmp_path / "run"))
    assert 'attack = "1:flipped:2"' in (tmp_path / "run" / "recipe.toml").read_text()
    assert len(u.load(tmp_path / "run").info["scenario_facts"]["attackers"]) == 1


@pytest.mark.parametrize(("text", "sentence"), [
    ("scaled:2", r"written COUNT:KIND or COUNT:KIND:NUMBER, as in 2:scaled:100\. Got 'scaled:2'"),
    ("0:scaled", "written COUNT:KIND"), ("1:scalled", "no attack 'scalled'"),
    ("1:forged:2", "The attack 'forged' takes no number"), ("1:scaled:0", "greater than 0 and at most 1e30. Got '0'"),
    ("1:scaled:much", "greater than 0 and at most 1e30. Got 'much'"), ("1:scaled:nan", "greater than 0 and at most"),
    ("4:scaled", r"Attackers must be fewer than the clients\. Got 4 of 4\."),
])
def test_what_is_no_attack_is_refused(text, sentence):
    """In one sentence."""
    with pytest.raises(u.UmbelError, match=sentence):
        u.simulate("digits", clients=4, device="cpu", attack=text)


def test_attackers_do_not_stand_behind_what_hides_models():
    """topk sends no model that they could alter."""
    with pytest.raises(u.UmbelError, match="behind the uplink 'topk' there are none"):
        u.run(u.FedAvg(local=LOCAL), fed("loop", "2:scaled"), rounds=1, uplink="topk:0.1")
    with pytest.raises(u.UmbelError, match="take another attack"):
        u.simulate(tiny_population(), attack="1:mislabelled", device="cpu")


@pytest.mark.parametrize("number", ["1e30", "100"])
@pytest.mark.parametrize("method", ["fedavg", "fednova", "scaffold"])
def test_honest_clients_are_served_as_without_the_attacker(method, number):
    """One of six sends its update a hundred times, or 1e30: the others end within a point of the run without it."""
    def score(attack, of):
        there = u.simulate("digits", scenario="iid", clients=6, seed=7, device="cpu", attack=attack)
        result = u.run(method, there, rounds=4, fine_tune=0, eval_every=4)
        clients = result.records[-1]["final"]["cluster_model"]["clients"]
        return mean(own["score"] for name, own in clients.items() if name in of), result

    with_it, attacked = score(f"1:scaled:{number}", {f"c{i:03d}" for i in range(6)})
    liar = attacked.info["scenario_facts"]["attackers"][0]
    without_it, _ = score("", {f"c{i:03d}" for i in range(6)} - {liar})
    assert abs(with_it - without_it) <= 0.01
    assert [record["lost"].get(liar, [""])[0][:11] for record in attacked.records[1:]] == ["update more"] * 4
