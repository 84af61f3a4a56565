"""Parts of a client's rows, against slow and literal computations."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import CLASSES, ENGINES, SEED, SHAPE, tiny_model, tiny_population
from torch import nn, tensor

from umbel.clustering.parts import (
    FINE,
    MOST_PARTS,
    MOST_ROWS,
    WIDTH,
    Parts,
    distinct_counts,
    embedded_parts,
    marks,
    projected,
    raw_parts,
    read,
    sizes,
)
from umbel.federation.door import Cohort
from umbel.federation.tasks import Client
from umbel.nets.objective import Regress
from umbel.nets.wrap import wrap

NET = tiny_model()
EVERYBODY = Cohort(torch.arange(6), 0, "signature")


def client(x, y):
    """A client with these rows."""
    return Client(torch.as_tensor(x, dtype=torch.float32), torch.as_tensor(y), tensor(len(y)), tensor(0), {})


def rows(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).random(shape, dtype=np.float32))


def raw(x, y, net=NET, **options):
    """Parts as (kind, numbers), in their order."""
    sent = raw_parts.function(net, client(x, y), **options).send
    return list(zip(sent["part_kind"].tolist(), sent["part"], strict=True))


def literally(vectors, y, mark, size, kinds=CLASSES):
    """The means of so many rows of each kind, in the order of their marks."""
    parts = []
    for kind in range(kinds):
        mine = sorted((int(mark[i]), i) for i in range(len(y)) if y[i] == kind)
        m = size[kind]
        parts += [(kind, sum(vectors[i] for _, i in mine[at : at + m]) / m) for at in range(0, len(mine) - m + 1, m)]
    return parts


def equal(found, expected):
    assert [kind for kind, _ in found] == [kind for kind, _ in expected]
    for (_, mine), (_, theirs) in zip(found, expected, strict=True):
        assert mine.tolist() == pytest.approx(theirs.tolist(), abs=1e-6)


# How many rows a part has -----------------------------------------------------------------------------------------


def test_a_part_has_a_quarter_of_the_rows_of_a_small_client():
    """The 20 % quantile of those who hold the kind, a fourth of it, 2 to 20 rows; who lacks the kind does not count."""
    held = tensor([[40, 0, 400, 7, 0], [44, 16, 400, 3, 0], [60, 0, 400, 9, 0],
                   [80, 16, 400, 9, 0], [90, 16, 400, 9, 0], [400, 0, 400, 9, 0]])
    # 20 % of the way from first to last of six is the second; sixteens alone; clipped above; below; held by nobody
    assert sizes(held).tolist() == [44 // 4, 16 // 4, MOST_ROWS, 2, 2]


def test_the_quantile_lies_between_two_clients():
    """Of 8, 9, 12, 40 and 100 rows it is 8.8: parts of two; of 15, 20 and 200 it is 17: of four."""
    assert sizes(tensor([[8], [9], [12], [40], [100]])).tolist() == [2]
    assert sizes(tensor([[15], [20], [200]])).tolist() == [4]


def test_blocks_are_as_long_as_they_can_be():
    """Four parts and as many gaps of the quantile, however long; at least two rows."""
    assert sizes(tensor([[800, 7]] * 3), "blocks").tolist() == [100, 2]


# What a part is ---------------------------------------------------------------------------------------------------


def test_parts_are_means_of_projected_rows_in_the_order_of_their_marks():
    """Kind by kind; what is left over at the end is in no part."""
    x, y = rows(20, *SHAPE), [0, 0, 1, 0, 0, 2, 0, 0, 1, 1, 2, 0, 1, 1, 1, 1, 0, 0, 2, 0]
    found = raw(x, y, sizes=(3, 2, 2))
    vectors = projected(((x - NET.mean) / NET.std).flatten(1))
    equal(found, literally(vectors, y, marks(x, tensor(y)), (3, 2, 2)))
    assert [kind for kind, _ in found] == [0, 0, 0, 1, 1, 1, 2]


def test_copies_count_once_and_the_order_of_rows_does_not_count():
    """A client that has every row three times, in another order, says the same."""
    x, y = rows(24, *SHAPE), torch.arange(24) % CLASSES
    turn = torch.from_numpy(np.random.default_rng(1).permutation(72))
    many = client(x.repeat(3, 1, 1, 1)[turn], y.repeat(3)[turn])
    for task, options in ((raw_parts, {"sizes": (2, 2, 2)}), (distinct_counts, {})):
        once, thrice = (task.function(NET, each, **options).send for each in (client(x, y), many))
        assert all(torch.equal(once[name], thrice[name]) for name in once)
    assert distinct_counts.function(NET, many).send["counts"].tolist() == [8, 8, 8]


def test_the_same_picture_with_another_label_is_no_copy():
    """Nor is one that differs by less than a level of grey, but for rounding."""
    x = rows(1, *SHAPE)
    assert len(marks(torch.cat([x, x]), tensor([0, 1])).unique()) == 2
    assert len(marks(torch.cat([x, x + 1 / 512]), tensor([0, 0])).unique()) == 2
    assert len(marks(torch.cat([x, x + 1e-7 / FINE]), tensor([0, 0])).unique()) == 1


def test_blocks_follow_in_time_with_gaps():
    """Parts of two rows: 0 and 1, not 2 and 3, 4 and 5 ...: of the kind, as they lie; copies are left out first."""
    x, y = rows(13, *SHAPE), tensor([0] * 13)
    x[1] = x[0]
    found = raw(x, y, sizes=(2, 2, 2), deal="blocks")
    vectors = projected(((x - NET.mean) / NET.std).flatten(1))[[0, *range(2, 13)]]
    equal(found, [(0, vectors[at : at + 2].mean(0)) for at in (0, 4, 8)])


@pytest.mark.parametrize("deal", ["random", "blocks"])
def test_a_kind_has_at_most_eight_parts_as_far_apart_as_can_be(deal):
    """Of the twenty that there are (in time ten), the first, the last and six between them."""
    x, y = rows(40, *SHAPE), torch.zeros(40).long()
    found = raw(x, y, sizes=(2, 2, 2), deal=deal)
    assert len(found) == MOST_PARTS == 8
    vectors, mark = projected(((x - NET.mean) / NET.std).flatten(1)), marks(x, y)
    order = mark.argsort() if deal == "random" else torch.arange(40)
    places = [0, 3, 5, 8, 11, 14, 16, 19] if deal == "random" else [0, 2, 6, 8, 10, 12, 16, 18]
    equal(found, [(0, vectors[order[2 * at : 2 * at + 2]].mean(0)) for at in places])


def test_a_client_with_fewer_rows_than_a_part_has_none():
    """It says how many rows it has all the same; so does one with a single row."""
    for x, y in ((rows(3, *SHAPE), [0, 1, 2]), (rows(1, *SHAPE), [2])):
        sent = raw_parts.function(NET, client(x, y), sizes=(2, 2, 2)).send
        assert sent["part"].shape == (0, 5)
        assert sent["part_kind"].shape == (0,)
        assert distinct_counts.function(NET, client(x, y)).send["counts"].sum() == len(y)


def test_rows_that_are_all_equal_are_one_row():
    """And so no part."""
    assert raw(rows(1, *SHAPE).repeat(30, 1, 1, 1), [1] * 30, sizes=(2, 2, 2)) == []


# How rows become few numbers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("features", "width"), [(1, 1), (2, 1), (9, 5), (31, 16), (784, 16)])
def test_a_projection_keeps_at_most_half_of_the_numbers(features, width):
    """At most 16; on orthogonal directions of one length, by which squared lengths stay the same on average."""
    directions = projected(torch.eye(features))
    assert directions.shape == (features, width)
    assert width <= WIDTH
    assert np.allclose(directions.T @ directions, torch.eye(width) * features / width)
    assert torch.equal(directions, projected(torch.eye(features)))


def test_numbers_to_be_predicted_are_part_of_a_row():
    """In their own units: groups that differ only in what inputs mean differ in them."""
    net = wrap(lambda: nn.Linear(4, 1), (4,), Regress(centre=10.0, scale=2.0))
    x, y = rows(4, 4), tensor([10.0, 12.0, 16.0, 18.0])
    [(kind, part)] = raw(x, y, net, sizes=(4,))
    assert kind == 0
    assert part.shape == (3,)
    assert part[2] == pytest.approx((0 + 1 + 3 + 4) / 4)


def test_embedded_parts_are_those_of_what_enters_the_classifier():
    """By the model that was sent."""
    fed = ENGINES["loop"](NET, tiny_population(), SEED)
    model = NET.init(1)
    heard = fed.map(embedded_parts, EVERYBODY, shared={"model": model}, sizes=(2, 2, 2)).answers
    population = tiny_population()
    for i, own in enumerate(population.train):
        x, y = (torch.from_numpy(part[own]) for part in population.pool[:2])
        expected = literally(projected(NET.embed(model, x)), y, marks(x, y), (2, 2, 2))
        many = int(heard["part"].length[i])
        equal(list(zip(heard["part_kind"].values[i, :many].tolist(), heard["part"].values[i], strict=False)), expected)


@pytest.mark.parametrize("engine", ENGINES)
def test_parts_are_the_same_on_every_engine(engine):
    """Means of a client's exact rows, wherever: raw to the last bit, embedded to rounding."""
    loop, other = (ENGINES[name](tiny_model(), tiny_population(), SEED) for name in ("loop", engine))
    for task, inputs in ((raw_parts, {}), (embedded_parts, {"shared": {"model": NET.init(1)}})):
        one, two = (fed.map(task, EVERYBODY, sizes=(2, 2, 2), **inputs).answers for fed in (loop, other))
        assert torch.equal(one["part"].length, two["part"].length)
        assert torch.equal(one["part_kind"].values, two["part_kind"].values)
        assert torch.allclose(one["part"].values, two["part"].values, atol=0 if task is raw_parts else 1e-6)


# Flat -------------------------------------------------------------------------------------------------------------


def test_answers_are_read_as_parts_with_their_owners():
    """Padding is left out."""
    fed = ENGINES["loop"](NET, tiny_population(), SEED)
    counts = fed.map(distinct_counts, EVERYBODY).answers["counts"]
    heard = fed.map(raw_parts, EVERYBODY, sizes=(3, 3, 3)).answers
    found = read({"vector": heard["part"].values, "length": heard["part"].length,
                  "kind": heard["part_kind"].values, "counts": counts})
    lengths = heard["part"].length.tolist()
    assert found.owner.tolist() == [i for i, many in enumerate(lengths) for _ in range(many)]
    kinds = heard["part_kind"].values.tolist()
    assert found.kind.tolist() == [kinds[i][k] for i, many in enumerate(lengths) for k in range(many)]
    assert found.vector[lengths[0]].tolist() == heard["part"].values[1, 0].tolist()
    assert found.counts.sum(1).tolist() == [13, 20, 7, 20, 16, 9]


def test_parts_of_some_clients_are_numbered_anew():
    """In the order in which the clients are named; the others' parts are gone."""
    owner, kind = np.array([0, 0, 1, 2, 2]), np.array([0, 1, 0, 0, 1])
    parts = Parts(owner, kind, np.arange(10.0).reshape(5, 2), np.eye(3, dtype=int))
    some = parts.of(np.array([2, 0]))
    assert some.owner.tolist() == [1, 1, 0, 0]
    assert some.kind.tolist() == [0, 1, 0, 1]
    assert some.vector[:, 0].tolist() == [0, 2, 6, 8]
    assert some.counts.tolist() == [[0, 0, 1], [1, 0, 0]]


def test_a_level_of_grey_is_scaled_as_the_model_scales_it():
    """A network that centres its inputs describes its rows so, too."""
    x, y = rows(4, *SHAPE), [0] * 4
    net = replace(NET, mean=torch.full((1, 1, 1), 0.5), std=torch.full((1, 1, 1), 0.25))
    plain, scaled = (raw(x, y, each, sizes=(4, 2, 2))[0][1] for each in (NET, net))
    one = projected(torch.ones(1, 9))[0].float()
    assert scaled.tolist() == pytest.approx(((plain - 0.5 * one) / 0.25).tolist(), abs=1e-5)
