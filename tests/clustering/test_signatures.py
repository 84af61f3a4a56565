"""How clients describe themselves, against slow and literal computations."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import CLASSES, ENGINES, SEED, SHAPE, tiny_model, tiny_population
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn, tensor

from umbel.clustering.flat import affinity_propagation
from umbel.clustering.heterogeneity import hopkins, variation
from umbel.clustering.proximity import symmetric, trajectory_distance
from umbel.clustering.signatures import (
    class_counts,
    class_embedded,
    class_vectors,
    counts_of,
    features_of,
    leading_vectors,
    losses,
    principal_embedded,
    principal_vectors,
    signature_for,
    trajectory,
    votes,
)
from umbel.errors import UmbelError
from umbel.federation.door import Cohort
from umbel.federation.tasks import Client
from umbel.nets.objective import NextToken
from umbel.nets.wrap import wrap

NET = tiny_model()


def client(x, y):
    """A client with these rows."""
    return Client(torch.as_tensor(x, dtype=torch.float32), torch.as_tensor(y), tensor(len(y)), tensor(0), {})


def rows(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).random(shape, dtype=np.float32))


# Principal vectors ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("m", "features"), [(4, 9), (9, 9), (30, 9), (200, 5), (5, 200)])
@pytest.mark.parametrize("rank", [1, 3])
def test_leading_vectors_are_those_of_an_svd(m, features, rank):
    """Wide or tall, they are numpy's left singular vectors of data.T, each with its largest entry positive."""
    data = rows(m, features, seed=m)
    left = np.linalg.svd(data.double().numpy().T)[0][:, :rank].T  # (rank, F)
    found = leading_vectors(data, rank).numpy()
    assert found.shape == (rank, features)
    for mine, theirs in zip(found, left, strict=True):
        assert mine[np.abs(mine).argmax()] > 0
        assert mine == pytest.approx(theirs * np.sign(theirs @ mine), abs=1e-6)


def test_vectors_are_not_centred():
    """Raw pixels: the first vector of nearly constant images is their mean, not their first difference."""
    data = 5 + 0.01 * rows(20, 4)
    assert leading_vectors(data, 1)[0].tolist() == pytest.approx([0.5] * 4, abs=1e-2)


@pytest.mark.parametrize(
    ("data", "real"),
    [
        (torch.ones(1, 9), 1),  # one sample
        (torch.full((7, 9), 0.3), 1),  # constant images
        (rows(1, 9).repeat(12, 1), 1),  # one image twelve times, more rows than pixels
        (rows(2, 9), 2),  # fewer rows than vectors asked for
        (torch.zeros(7, 9), 0),  # black images
        (torch.zeros(12, 9), 0),
        (torch.zeros(0, 9), 0),  # no rows
        (rows(30, 9), 3),
    ],
)
def test_only_real_directions_are_sent(data, real):
    """A singular value of zero has no direction: r counts those above 1e-6 of the largest."""
    found = leading_vectors(data, 3)
    assert found.shape == (real, 9)
    assert found.norm(dim=1).tolist() == pytest.approx([1] * real)


def test_a_faint_direction_is_real_and_rounding_is_not():
    """1e-4 of the largest singular value is data, 1e-8 of it is noise."""
    eye = torch.eye(4)
    assert len(leading_vectors(torch.stack([eye[0], 1e-4 * eye[1]]), 3)) == 2
    assert len(leading_vectors(torch.stack([eye[0], 1e-8 * eye[1]]), 3)) == 1


def test_data_that_are_not_numbers_give_vectors_that_are_not():
    """The door then drops the client with the reason, instead of an eigensolver's traceback."""
    data = rows(5, 9)
    data[2, 3] = torch.nan
    assert leading_vectors(data, 3).isnan().all()


def test_a_whole_client_sends_its_vectors_and_size():
    """PACFL as printed: one SVD of all rows, whatever their class (marked -1)."""
    x, y = rows(6, *SHAPE), [0, 1, 2, 0, 1, 2]
    sent = principal_vectors.function(NET, client(x, y), rank=2).send
    assert torch.equal(sent["basis"], leading_vectors(x.flatten(1), 2))
    assert sent["basis_class"].tolist() == [-1, -1]
    assert int(sent["size"]) == 6


def test_each_class_has_vectors_of_its_own():
    """Absent classes send nothing, a class of one sample one vector, whatever the rank."""
    x, y = rows(8, *SHAPE), [2, 0, 0, 0, 0, 0, 0, 0]
    sent = class_vectors.function(NET, client(x, y), rank=3).send
    assert sent["basis_class"].tolist() == [0, 0, 0, 2]
    assert torch.equal(sent["basis"][:3], leading_vectors(x[1:].flatten(1), 3))
    assert torch.equal(sent["basis"][3:], leading_vectors(x[:1].flatten(1), 3))


def test_a_black_class_sends_no_vector_and_no_class():
    """basis and basis_class keep the same length."""
    x = torch.cat([torch.zeros(3, *SHAPE), rows(3, *SHAPE)])
    sent = class_vectors.function(NET, client(x, [0, 0, 0, 1, 1, 1]), rank=2).send
    assert sent["basis_class"].tolist() == [1, 1]
    assert class_vectors.function(NET, client(x[:3], [0, 0, 0]), rank=2).send["basis"].shape == (0, 9)
    assert class_vectors.function(NET, client(x[:0], torch.zeros(0).long()), rank=2).send["basis"].shape == (0, 9)


@pytest.mark.parametrize(("count", "sent"), [(1, 1), (40, 1), (149, 1), (151, 2), (260, 3), (499, 5), (900, 5)])
def test_flags_p_is_one_per_cent_of_a_class(count, sent):
    """p = round(0.01 n_c), at least 1 and at most `rank`."""
    reply = class_vectors.function(NET, client(rows(count, *SHAPE), [1] * count), rank=5, share=0.01)
    assert len(reply.send["basis"]) == sent


def test_counts_hold_every_class():
    """Absent classes count 0; one row moves the counts by 1, and whatever was added to them, none ends below 0."""
    release = class_counts.function(NET, client(rows(3, *SHAPE), [2, 0, 2]))
    assert release.sensitivity == 1
    assert class_counts.after(NET, release.statistic).send["counts"].tolist() == [1, 0, 2]
    moved = {"counts": release.statistic["counts"] - 0.7}
    assert class_counts.after(NET, moved).send["counts"].tolist() == [0, 0, 1]


@pytest.mark.parametrize("engine", ENGINES)
def test_ragged_signatures_are_the_same_on_every_engine(engine):
    """Vectors are computed on a client's exact rows, wherever."""
    cohort = Cohort(tensor([4, 2]), 0, "signature")
    loop, other = (ENGINES[name](tiny_model(), tiny_population(), SEED).map(class_vectors, cohort, rank=2)
                   for name in ("loop", engine))
    assert torch.equal(loop.answers["basis"].values, other.answers["basis"].values)


# What a row is as a vector -----------------------------------------------------------------------------------------


def texts(vocabulary=4, length=3):
    """Three tokens, each of which goes through an embedding and a head of its own."""
    def make():
        return nn.Sequential(nn.Embedding(vocabulary, 2), nn.Linear(2, vocabulary))
    return wrap(make, (length,), NextToken(vocabulary, length), tokens=True)


TABLE = replace(wrap(lambda: nn.Linear(3, 2), (3,), 2), levels=(0, 3, 2))
WAYS = {"numbers": NET, "table": TABLE, "texts": texts()}


@pytest.mark.parametrize(("kind", "usual"), [("numbers", "raw"), ("table", "embedding"), ("texts", "embedding")])
def test_rows_of_numbers_are_taken_as_they_are_and_names_are_embedded(kind, usual):
    """By default; raw codes of categories and raw tokens are refused, and so are counts of numbers."""
    net = WAYS[kind]
    assert signature_for(net, "auto") == usual
    assert signature_for(net, "embedding") == "embedding"
    if usual == "raw":
        with pytest.raises(UmbelError, match=r"Counts are of tokens or of categories.*take signature=raw of numbers"):
            signature_for(net, "counts")
        return
    assert signature_for(net, "counts") == "counts"
    with pytest.raises(UmbelError, match=f"and {'tokens' if net.tokens else 'categories'} are names: take signature="):
        signature_for(net, "raw")


def test_counts_are_of_tokens_or_of_levels():
    """A token counts as often as it stands in a row, each level of a category 0 or 1; numbers are left out."""
    assert counts_of(texts(), tensor([[0, 3, 3], [1, 1, 1]])).tolist() == [[1, 0, 0, 2], [0, 3, 0, 0]]
    x = tensor([[0.5, 2, 1], [-7, 0, 0]])
    assert counts_of(TABLE, x).tolist() == [[0, 0, 1, 0, 1], [1, 0, 0, 1, 0]]
    series = replace(TABLE, levels=(0, 2))
    assert counts_of(series, tensor([[[9.0, 1], [9, 1], [9, 0]]])).tolist() == [[1, 2]]


def test_too_many_tokens_are_not_counted():
    """What travels is bounded: every vector would have a number for each of them."""
    with pytest.raises(UmbelError, match=r"Counts are of at most 65,536 tokens or levels\. Got 65,537"):
        signature_for(texts(65_537), "counts")


def test_a_row_of_text_is_the_mean_of_its_places():
    """The embedding of each token enters the head: the row is their mean. Elsewhere a row is what enters the head."""
    net, x = texts(), tensor([[0, 3, 3], [1, 1, 1]])
    params = net.init(0)
    table = params["0.weight"]
    wanted = torch.stack([(table[0] + 2 * table[3]) / 3, table[1]])
    assert torch.allclose(features_of(net, params, x), wanted)
    images, own = rows(4, *SHAPE), NET.init(1)
    assert torch.equal(features_of(NET, own, images), NET.embed(own, images))


def test_subspaces_are_of_counts_and_of_embeddings():
    """The same singular vectors, of other rows; a class keeps its own."""
    net, x = texts(), tensor([[0, 3, 3], [1, 1, 1], [0, 0, 3]])
    here = Client(x, x, tensor(3), tensor(0), {})
    sent = principal_vectors.function(net, here, rank=2, signature="counts").send
    assert torch.equal(sent["basis"], leading_vectors(counts_of(net, x), 2))
    sent = class_vectors.function(net, here, rank=2, signature="counts").send
    assert sent["basis_class"].tolist() == [0, 0]  # what goes on in a text is of one kind
    images, y, params = rows(6, *SHAPE), tensor([0, 1, 0, 1, 0, 1]), NET.init(1)
    values = class_embedded.each(NET, params, images, y)
    sent = class_embedded.finish(NET, values, rank=2).send
    assert sent["basis_class"].tolist() == [0, 0, 1, 1]
    assert torch.equal(sent["basis"][2:], leading_vectors(NET.embed(params, images)[1::2], 2))
    assert torch.equal(principal_embedded.finish(NET, values, rank=3).send["basis"],
                       leading_vectors(NET.embed(params, images), 3))


def test_what_travels_is_bounded_by_rank_classes_and_width():
    """Whatever a client holds: the server promises itself no more."""
    assert principal_vectors.answers(NET, rank=3)["basis"].shape[0].most == 3
    assert class_vectors.answers(NET, rank=3)["basis"].shape[1] == 9
    assert class_embedded.answers(NET, rank=3)["basis"].shape[0].most == 3 * CLASSES
    assert class_embedded.answers(NET, rank=3)["basis"].shape[1] == 8
    counts = class_vectors.answers(texts(), rank=5, signature="counts")["basis"].shape
    assert (counts[0].most, counts[1]) == (5, 4)


# Trajectories -----------------------------------------------------------------------------------------------------


def forces(params, x, y):
    """z1_c = sum over y_i = c of (1 - P_ic) v_i, z2_c = sum over y_i != c of P_ic v_i: (2, C, d), by loops."""
    z = np.zeros((2, CLASSES, 8))
    for image, label in zip(x.double(), y, strict=True):
        hidden = torch.relu(params["1.weight"].double() @ image.flatten() + params["1.bias"].double())
        scores = (params["3.weight"].double() @ hidden + params["3.bias"].double()).numpy()
        chance = np.exp(scores) / np.exp(scores).sum()
        for c in range(CLASSES):
            own = int(label) == c
            z[0 if own else 1, c] += (1 - chance[c] if own else chance[c]) * hidden.numpy()
    return z


def described(params, x, y, **options):
    """The task's answer."""
    return trajectory.finish(NET, trajectory.each(NET, params, x, tensor(y)), **options).send["trajectory"]


@pytest.mark.parametrize("y", [[0, 1, 2, 2, 1, 0, 0], [1] * 7])
def test_trajectories_are_the_printed_forces(y):
    """Sums of the printed forces, averaged over the d features; the default divides by the client's rows."""
    params, x = NET.init(1), rows(7, *SHAPE, seed=3)
    literal = forces(params, x, y).mean(2)
    assert described(params, x, y, total=True).numpy() == pytest.approx(literal, abs=1e-6)
    assert described(params, x, y).numpy() == pytest.approx(literal / 7, abs=1e-6)


def test_push_minus_pull_is_the_classifiers_gradient():
    """-z1_c + z2_c, before the mean over features, is row c of the gradient of the summed cross-entropy."""
    params, x, y = NET.init(1), rows(7, *SHAPE, seed=3), [0, 1, 2, 2, 1, 0, 0]
    leaves = {name: leaf.clone().requires_grad_() for name, leaf in params.items()}
    torch.nn.functional.cross_entropy(NET.logits(leaves, x), tensor(y), reduction="sum").backward()
    z1, z2 = forces(params, x, y)
    slope = leaves["3.weight"].grad
    assert slope.numpy() == pytest.approx(z2 - z1, abs=1e-5)
    sent = described(params, x, y, total=True)
    assert (sent[1] - sent[0]).tolist() == pytest.approx(slope.mean(1).tolist(), abs=1e-5)


def test_a_mean_does_not_see_size_and_a_total_does():
    """Every row twice: the same mean, twice the total."""
    params, x, y = NET.init(1), rows(5, *SHAPE, seed=3), [0, 1, 2, 2, 1]
    twice = torch.cat([x, x]), y + y
    assert described(params, *twice).numpy() == pytest.approx(described(params, x, y).numpy(), abs=1e-7)
    once = described(params, x, y, total=True)
    assert described(params, *twice, total=True).numpy() == pytest.approx(2 * once.numpy(), abs=1e-6)


def test_forces_are_never_negative():
    """Features that enter the classifier are past a ReLU, so pull and push have lengths, not signs."""
    assert (described(NET.init(2), rows(9, *SHAPE), [0, 1, 2] * 3) >= 0).all()


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.permutations(range(4)))
def test_the_order_of_classes_does_not_matter(seed, order):
    """Permuting classes, the same for all clients, leaves CFLGT's distances and clusters as they are."""
    rng = np.random.default_rng(seed)
    centres = rng.random((3, 2, 4))
    points = torch.from_numpy(np.repeat(centres, 4, axis=0) + 0.05 * rng.random((12, 2, 4)))
    shuffled = points[:, :, list(order)]
    a, b = (symmetric(trajectory_distance(side, side)) for side in (points, shuffled))
    assert b.numpy() == pytest.approx(a.numpy(), abs=1e-12)
    assert torch.equal(affinity_propagation(a).labels, affinity_propagation(b.round(decimals=12)).labels)


# Losses and votes -------------------------------------------------------------------------------------------------


def literal_losses(models, x, y):
    """(k, rows): -log of the chance of the true class, one row at a time."""
    found = []
    for params in models:
        scores = [NET.logits(params, image[None])[0].double() for image in x]
        found.append([math.log(s.exp().sum()) - float(s[label]) for s, label in zip(scores, y, strict=True)])
    return np.array(found)


def test_losses_and_votes_are_literal():
    """The mean loss of each model, and how many rows each fits best."""
    models, x, y = [NET.init(k) for k in range(3)], rows(9, *SHAPE), [0, 1, 2] * 3
    literal = literal_losses(models, x, y)
    values = {"loss": torch.stack([losses.each(NET, params, x, tensor(y))["loss"] for params in models])}
    assert losses.finish(NET, values, k=3).send["losses"].tolist() == pytest.approx(literal.mean(1).tolist(), abs=1e-5)
    sent = votes.finish(NET, values, k=3).send
    assert sent["votes"].tolist() == np.bincount(literal.argmin(0), minlength=3).tolist()
    assert int(sent["size"]) == 9


def test_a_broken_model_gets_no_votes():
    """Where one model gives no number, the other wins the row."""
    sent = votes.finish(NET, {"loss": tensor([[torch.nan, torch.nan], [9.0, 8.0]])}).send
    assert sent["votes"].tolist() == [0, 2]


def test_losses_are_those_of_training_rows():
    """The door gives `losses` the training rows: they are what a literal loop over these gives."""
    fed = ENGINES["simulator"](tiny_model(), tiny_population(), SEED)
    models = [NET.init(k) for k in range(2)]
    stacked = {name: torch.stack([params[name] for params in models]) for name in models[0]}
    heard = fed.map(losses, Cohort(tensor([3]), 0), shared={"models": stacked}, k=2)
    x, y = fed.clients.gather(fed.clients.population.train[3])
    literal = literal_losses(models, x, y.tolist()).mean(1)
    assert heard.answers["losses"][0].tolist() == pytest.approx(literal.tolist(), abs=1e-5)


# Are there groups at all ------------------------------------------------------------------------------------------


def test_hopkins_tells_groups_from_none():
    """Near 0.5 for uniform points, near 1 for tight groups; 0.5 where there is nothing to measure."""
    rng = np.random.default_rng(0)
    uniform = torch.from_numpy(rng.random((100, 2)))
    groups = torch.from_numpy(np.repeat(rng.random((4, 2)), 25, axis=0) + 0.001 * rng.random((100, 2)))
    assert 0.4 < hopkins(uniform) < 0.6
    assert hopkins(groups) > 0.95
    assert hopkins(torch.ones(6, 3)) == hopkins(torch.zeros(2, 3)) == 0.5
    assert hopkins(groups, seed=1) == hopkins(groups, seed=1)


def test_variation_is_sigma_over_mu():
    """Pull 1 and 3: mean 2, deviation 1. Push 2 and 2: none. All zero: none."""
    points = tensor([[[1.0, 3.0], [2.0, 2.0]]])
    assert variation(points).tolist() == [0.5, 0]
    assert variation(torch.zeros(3, 2, 4)).tolist() == [0, 0]
