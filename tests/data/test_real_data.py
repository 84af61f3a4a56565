"""What the papers show, on the real data sets; skipped where they are not at hand."""


import numpy as np
import pytest
import torch
from real_data import REAL, needs_data

import umbel
from umbel.clustering.proximity import column_angle, euclidean, symmetric
from umbel.clustering.signatures import leading_vectors
from umbel.data.sources import open_dataset
from umbel.federation.training import train
from umbel.runs.evaluate import agreement
from umbel.tree import Ragged

LOCAL = umbel.Local(lr=0.01, momentum=0.0, epochs=10, batch=32)  # the Comparative Evaluation's


@pytest.mark.slow
@needs_data
def test_the_oracle_beats_one_model_on_rotated_images():
    """Fashion-MNIST, 48 clients, four rotations: a model per rotation is far ahead after four rounds already."""
    fed = umbel.simulate("fashion-mnist", scenario="rotation-4", model="mlp", seed=42, data_dir=REAL, device="cpu")
    one = umbel.run(umbel.FedAvg(local=LOCAL), fed, rounds=4, eval_every=4, fine_tune=0)
    groups = umbel.run(umbel.Oracle(fed.provenance.truth, local=LOCAL), fed, rounds=4, eval_every=4, fine_tune=0)
    assert groups.accuracy > one.accuracy + 0.1
    assert groups.info["clusters"]["ari"] == 1


def angles_between_classes(data: str, rank: int) -> np.ndarray:
    """Column angles between the classes of a whole training set."""
    held = open_dataset(data, REAL)
    rows = [torch.from_numpy(held.x_train[held.y_train == c]).flatten(1).float() / 255 for c in range(held.classes)]
    basis = torch.stack([leading_vectors(x, rank) for x in rows])
    ragged = Ragged(basis, torch.full((len(basis),), rank))
    return symmetric(column_angle(ragged, ragged)).numpy()


@pytest.mark.slow
@needs_data
def test_classes_of_cifar_form_animals_and_vehicles():
    """PACFL's picture: columns of the class subspaces are near inside {bird .. horse} and {plane, car, ship, truck}."""
    found = angles_between_classes("cifar10", rank=3)
    if len(open_dataset("cifar10", REAL).y_train) == 20_000:  # the first row as measured before on that part
        expected = [0, 7.10, 6.68, 8.70, 9.40, 10.61, 10.84, 7.63, 6.87, 9.34]
        assert found[0] == pytest.approx(expected, abs=0.01)
    animals, vehicles = [2, 3, 4, 5, 6, 7], [0, 1, 8, 9]
    inside = max(found[np.ix_(animals, animals)].mean(), found[np.ix_(vehicles, vehicles)].mean())
    assert found[np.ix_(animals, vehicles)].mean() > 1.5 * inside


@pytest.mark.slow
@needs_data
def test_pacfl_finds_the_four_data_sets_of_mix_4():
    """Without being told their number; and the digits of a set that nobody had found a cluster of their own."""
    fed = umbel.simulate("mix-4", data_dir=REAL, device="cpu", seed=0)
    fed.online[86:] = False  # USPS, the last fourteen clients, is not there yet
    method = umbel.PACFL()
    state = method.init(fed, 0)
    assert agreement(state.labels[:86].tolist(), fed.provenance.truth[:86])["ari"] == 1
    fed.online[:] = True
    state = method.admit(fed, state, umbel.Cohort(torch.arange(86, 100), 1, "admit"))
    assert agreement(state.labels.tolist(), fed.provenance.truth)["ari"] == 1


@pytest.mark.slow
@needs_data
def test_the_classifier_tells_two_label_groups_apart_best():
    """FedClust's Fig. 1 with LeNet-5: distances between groups over those within are largest at the classifier."""
    held = open_dataset("cifar10", REAL)
    rng = np.random.default_rng(0)
    rows = [rng.choice(np.flatnonzero((held.y_train < 5) == (k < 5)), 750, replace=False) for k in range(10)]
    people = umbel.Population(umbel.Pool(held.x_train, held.y_train), rows, rows, np.arange(10) // 5, 10)
    fed = umbel.simulate(people, model="lenet5", device="cpu")
    anchor = fed.net.init(0)
    heard = fed.map(train, umbel.Cohort(torch.arange(10), 0), work=umbel.Work(epochs=10), shared={"model": anchor},
                    lr=0.01, momentum=0.5, keep=False)
    groups = torch.arange(10) // 5
    between = groups[:, None] != groups[None]
    within = ~between & ~torch.eye(10, dtype=torch.bool)
    contrast = {}
    for layer in ("conv1", "conv2", "fc1", "fc2", "fc3"):
        weights = heard.answers["model"][f"{layer}.weight"].flatten(1)
        apart = euclidean(weights, weights)
        contrast[layer] = float(apart[between].mean() / apart[within].mean())
    assert max(contrast, key=contrast.get) == "fc3"
    assert contrast["fc3"] > 2 * contrast["conv1"]


@pytest.mark.slow
@needs_data
@pytest.mark.parametrize(("scenario", "clusters"), [("cflgt-1", 5), ("iid", 1)])
def test_cflgt_finds_five_groups_or_none(scenario, clusters):
    """Fashion-MNIST: five label pairs are five clusters, IID clients are one; the read-outs order as printed."""
    fed = umbel.simulate("fashion-mnist", scenario=scenario, clients=100, model="mlp", data_dir=REAL, device="cpu")
    local = umbel.Local(lr=0.001, momentum=0.9, epochs=5, batch=32)
    method = umbel.CFLGT(pretrain=0, local=local)  # the paper pre-trains for 25 rounds; the groups show at once
    state = method.init(fed, 0)
    assert int(state.labels.max()) + 1 == clusters
    assert agreement(state.labels.tolist(), fed.provenance.truth)["ari"] >= 0.95
    assert (float(state.evidence["hopkins"]) > 0.75) == (clusters > 1)
