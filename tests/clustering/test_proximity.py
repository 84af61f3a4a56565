"""Distances between signatures, against scipy and double loops."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from real_data import REAL, needs_data
from scipy.linalg import subspace_angles
from torch import tensor

from umbel.clustering import proximity
from umbel.clustering.cuts import by_gap
from umbel.clustering.linkage import linkage
from umbel.clustering.proximity import (
    ANGLES,
    DISTANCES,
    WEIGHTS,
    Classwise,
    class_angle,
    column_angle,
    cosine,
    mean_angle,
    orthonormal,
    paired_angle,
    ratio_range,
    smallest_angle,
    summed_angle,
    symmetric,
    trajectory_distance,
    update_angle,
)
from umbel.clustering.signatures import leading_vectors
from umbel.data.sources import open_dataset
from umbel.tree import Ragged

F = 7


def ragged(*bases):
    """Clients' vectors, padded."""
    rows = [torch.as_tensor(basis, dtype=torch.float32) for basis in bases]
    return Ragged(torch.nn.utils.rnn.pad_sequence(rows, batch_first=True), tensor([len(row) for row in rows]))


def drawn(seed, *lengths, features=F):
    """Orthonormal vectors, as an SVD gives them."""
    rng = np.random.default_rng(seed)
    return [np.linalg.qr(rng.normal(size=(features, r)))[0].T.astype(np.float32) for r in lengths]


def principal(a, b):
    """scipy's principal angles in degrees."""
    return np.rad2deg(subspace_angles(a.T.astype(np.float64), b.T.astype(np.float64)))


def vector_angle(u, w):
    """arccos |cos| of two vectors in degrees."""
    return math.degrees(math.acos(min(1.0, abs(float(u.astype(float) @ w)) / np.linalg.norm(u) / np.linalg.norm(w))))


LITERAL = {
    "smallest": lambda a, b: principal(a, b).min(),
    "mean": lambda a, b: principal(a, b).mean(),
    "sum": lambda a, b: principal(a, b).sum(),
    "column": lambda a, b: min(vector_angle(u, w) for u in a for w in b),
    "paired": lambda a, b: sum(vector_angle(u, w) for u, w in zip(a, b, strict=False)),
}


def test_every_angle_has_a_literal_twin():
    """None is left untested."""
    assert set(LITERAL) == set(ANGLES)


@pytest.mark.parametrize("name", ANGLES)
@pytest.mark.parametrize("seed", range(4))
def test_angles_equal_scipy_and_double_loops(name, seed):
    """On ragged bases of 1 to 4 vectors, every pair."""
    a, b = drawn(seed, 3, 1, 4), drawn(seed + 50, 2, 3)
    found = ANGLES[name](ragged(*a), ragged(*b))
    assert found.shape == (3, 2)
    assert found.dtype == torch.float64
    for i, mine in enumerate(a):
        for j, theirs in enumerate(b):
            assert float(found[i, j]) == pytest.approx(LITERAL[name](mine, theirs), abs=1e-4)


@pytest.mark.parametrize("name", ["smallest", "mean", "sum"])
def test_principal_angles_of_vectors_that_are_not_orthogonal(name):
    """Vectors of several classes stand side by side: angles are those of the space they span."""
    rng = np.random.default_rng(2)
    a, b = rng.normal(size=(3, F)).astype(np.float32), rng.normal(size=(2, F)).astype(np.float32)
    assert float(ANGLES[name](ragged(a), ragged(b))) == pytest.approx(LITERAL[name](a, b), abs=1e-4)


@pytest.mark.parametrize("name", ["smallest", "mean", "sum"])
def test_a_vector_that_others_span_adds_nothing(name):
    """Twice the same vector between two others changes no angle; more vectors than pixels are no fault either."""
    rng = np.random.default_rng(3)
    u, v, w = rng.normal(size=(3, F)).astype(np.float32)
    plain = ANGLES[name](ragged(np.stack([u, v])), ragged(w[None]))
    again = ANGLES[name](ragged(np.stack([u, u, (1 + 1e-7) * u, v])), ragged(w[None]))
    assert float(again) == pytest.approx(float(plain), abs=1e-4)
    assert float(smallest_angle(ragged(np.stack([u, u, v])), ragged(v[None]))) == 0
    whole = ragged(rng.normal(size=(F + 2, F)))
    assert int((orthonormal(whole).norm(dim=2) > 0).sum()) == F


@pytest.mark.parametrize("name", ANGLES)
def test_the_sign_of_a_vector_does_not_matter(name):
    """An SVD's signs are arbitrary: |cos| is taken, and angles stay within 90 degrees each."""
    a, b = drawn(5, 3, 2), drawn(6, 3, 2)
    signs = np.array([[1], [-1], [-1]], dtype=np.float32)
    flipped = [basis * signs[: len(basis)] for basis in a]
    straight = ANGLES[name](ragged(*a), ragged(*b))
    assert ANGLES[name](ragged(*flipped), ragged(*b)).numpy() == pytest.approx(straight.numpy(), abs=1e-9)
    assert straight.max() <= (270 if name in ("sum", "paired") else 90)


@pytest.mark.parametrize("name", ANGLES)
def test_cosines_beyond_one_are_clipped(name):
    """Rounding gives cosines of 1.0000001; no angle is NaN, and equal vectors are at exactly 0."""
    basis = ragged(*drawn(7, 3), *drawn(7, 3)) if name != "column" else ragged(np.full((1, 3), 0.57735026), [[1, 1, 1]])
    assert ANGLES[name](basis, basis).tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize(("name", "apart"), [("smallest", 90), ("mean", 90), ("sum", 180), ("column", 90),
                                             ("paired", 180)])
def test_nothing_in_common_is_90_degrees(name, apart):
    """Each of two orthogonal pairs of vectors is at a right angle."""
    eye = np.eye(4)
    assert float(ANGLES[name](ragged(eye[:2]), ragged(eye[2:]))) == pytest.approx(apart)


@pytest.mark.parametrize("name", ANGLES)
def test_a_client_without_vectors_is_at_90_degrees(name):
    """Black images have no subspace: 90 to everybody, the like of it included, and 0 to itself."""
    some = ragged(np.eye(F)[:2], np.zeros((0, F)), np.zeros((0, F)))
    found = ANGLES[name](some, some)
    assert symmetric(found).tolist() == [[0, 90, 90], [90, 0, 90], [90, 90, 0]]
    none = ragged(np.zeros((0, F)), np.zeros((0, F)))
    assert symmetric(ANGLES[name](none, none)).tolist() == [[0, 90], [90, 0]]
    assert ANGLES[name](none, none).dtype == torch.float64


def test_known_angles():
    """(x, y) against (x, cos 30 y + sin 30 z): 0 and 30 degrees."""
    turned = [[1, 0, 0], [0, math.cos(math.pi / 6), 0.5]]
    a, b = ragged(np.eye(3)[:2]), ragged(turned)
    assert float(smallest_angle(a, b)) == pytest.approx(0, abs=1e-4)
    assert float(mean_angle(a, b)) == pytest.approx(15, abs=1e-4)
    assert float(summed_angle(a, b)) == pytest.approx(30, abs=1e-4)
    assert float(paired_angle(a, b)) == pytest.approx(30, abs=1e-4)


def test_the_column_angle_is_never_below_the_principal_angle():
    """It compares the vectors as they are; for one vector each they are equal."""
    a, b = drawn(8, 3, 3, 1), drawn(9, 3, 3, 1)
    smallest, column = (angle(ragged(*a), ragged(*b)) for angle in (smallest_angle, column_angle))
    assert (column >= smallest - 1e-9).all()
    assert float(column[2, 2]) == pytest.approx(float(smallest[2, 2]))


@pytest.mark.parametrize("name", ANGLES)
def test_equal_data_in_another_order_are_one_cluster(name):
    """Rounding is no angle: six clients with the same rows, shuffled, are at exactly 0 from each other."""
    rng = np.random.default_rng(0)
    for trial in range(6):
        m, features = int(rng.integers(4, 50)), int(rng.integers(9, 150))
        data = torch.from_numpy(rng.random((m, features), dtype=np.float32))
        bases = ragged(*(leading_vectors(data[rng.permutation(m)], 3) for _ in range(6)))
        distance = symmetric(ANGLES[name](bases, bases))
        assert distance.max() == 0, (trial, m, features)
        assert by_gap(linkage(distance)).labels.tolist() == [0] * 6


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(list(ANGLES)))
def test_distances_are_symmetric_with_a_zero_diagonal(seed, name):
    """Whatever the bases; and in the range of angles."""
    bases = ragged(*drawn(seed, *np.random.default_rng(seed).integers(0, 4, 5)))
    found = symmetric(ANGLES[name](bases, bases))
    assert torch.equal(found, found.T)
    assert found.diagonal().tolist() == [0] * 5
    assert 0 <= found.min() <= found.max() <= 270


def test_symmetric_takes_rounding_out():
    """The mean of both triangles."""
    assert symmetric(tensor([[1e-9, 2.0], [4.0, 0.0]])).tolist() == [[0, 3], [3, 0]]


# FLAG's class-wise distance ---------------------------------------------------------------------------------------


def classwise(clients, counts, classes=3):
    """Clients as {class: vectors}; counts (n, C) or None."""
    bases = [np.concatenate([held[c] for c in sorted(held)]) if held else np.zeros((0, F)) for held in clients]
    labels = [tensor([c for c in sorted(held) for _ in held[c]], dtype=torch.long) for held in clients]
    padded = torch.nn.utils.rnn.pad_sequence(labels, batch_first=True, padding_value=0)
    return Classwise(ragged(*bases), padded, None if counts is None else tensor(counts), classes)


def literal_flag(clients, counts, weights, delta, classes=3):
    """Eq. 3-6 by loops over i, j, c, with w_min and w_max over pairs and classes that one of the two holds."""
    epsilon = {"shifted": math.e, "literal": 1e-6}.get(weights)
    n = len(clients)

    def ratio(i, j, c):
        if epsilon is None:
            return 1.0
        logs = [math.log(counts[k][c] + epsilon) for k in (i, j)]
        return max(logs) / min(logs)

    ratios = [ratio(i, j, c) for i in range(n) for j in range(i + 1, n) for c in range(classes)
              if c in clients[i] or c in clients[j]]
    low, high = min(ratios), max(ratios)
    distance = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            for c in range(classes):
                if c in clients[i] and c in clients[j]:
                    angle = min(principal(clients[i][c], clients[j][c]))
                elif c in clients[i] or c in clients[j]:
                    angle = 180
                else:
                    angle = 0
                weight = 1.0 if high == low else 1 - delta + (ratio(i, j, c) - low) * 2 * delta / (high - low)
                distance[i, j] += angle * weight / classes if i != j else 0
    return distance


def some_clients():
    """Four clients with one to three of three classes, one to three vectors each; class 2 is rare."""
    vectors = drawn(11, 2, 1, 3, 1, 2, 1, 1)
    held = [{0: vectors[0], 1: vectors[1]}, {0: vectors[2]}, {1: vectors[3], 2: vectors[4]}, {0: vectors[5],
                                                                                            1: vectors[6]}]
    return held, [[200, 100, 0], [300, 0, 0], [0, 7, 50], [1, 90, 0]]


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("delta", [0.0, 0.5, 1.0])
def test_flags_v_is_the_printed_quadruple_loop(weights, delta):
    """V_ij = 1/|C| sum_c V'_ijc W'_ijc, for each way to weigh."""
    clients, counts = some_clients()
    signatures = classwise(clients, counts)
    bounds = ratio_range(signatures, weights)
    found = symmetric(class_angle(signatures, signatures, "smallest", weights, delta, bounds))
    assert found.numpy() == pytest.approx(literal_flag(clients, counts, weights, delta), abs=1e-4)


@pytest.mark.parametrize(("sizes", "ratio"), [((500, 50), 1.57), ((500, 5), 3.04), ((500, 0), 6.22), ((0, 0), 1)])
def test_shifted_weights_grow_with_the_disparity(sizes, ratio):
    """ln(n + e): finite, at least 1, and the larger the more the sizes differ."""
    one = np.eye(F)[:1]
    signatures = classwise([{0: one}, {0: one}], [[sizes[0]], [sizes[1]]], classes=1)
    assert ratio_range(signatures, "shifted") == pytest.approx((ratio, ratio), abs=0.005)


def test_literal_weights_are_as_printed():
    """With epsilon 1e-6, (500, 0) has the lowest weight and (500, 1) one of millions: why there is another mode."""
    one = np.eye(F)[:1]

    def ratio(a, b):
        return ratio_range(classwise([{0: one}, {0: one}], [[a], [b]], classes=1), "literal")[0]

    assert ratio(500, 0) == pytest.approx(-0.45, abs=1e-3)
    assert ratio(500, 1) == pytest.approx(6.2e6, rel=0.01)


def test_weights_reach_from_one_minus_to_one_plus_delta():
    """The least disparity weighs 1 - delta, the largest 1 + delta; both classes at 30 degrees."""
    u, w = np.array([[1.0, 0]]), np.array([[math.cos(math.pi / 6), 0.5]])
    signatures = classwise([{0: u, 1: u}, {0: w, 1: w}], [[100, 500], [100, 5]], classes=2)
    bounds = ratio_range(signatures, "shifted")
    assert bounds[0] == 1
    found = class_angle(signatures, signatures, "smallest", "shifted", 0.5, bounds)
    assert float(found[0, 1]) == pytest.approx((30 * 0.5 + 30 * 1.5) / 2, abs=1e-4)


def test_without_delta_weights_are_exactly_one_and_no_counts_are_needed():
    """The private mode: delta 0, or `uniform`, is a plain mean over classes."""
    clients, counts = some_clients()
    told, private = classwise(clients, counts), classwise(clients, None)
    plain = class_angle(private, private, "smallest", "uniform", 0.5, ratio_range(private, "uniform"))
    none = class_angle(told, told, "smallest", "shifted", 0.0, ratio_range(told, "shifted"))
    secret = class_angle(private, private, "smallest", "shifted", 0.0, ratio_range(private, "shifted"))
    assert torch.equal(plain, none)
    assert torch.equal(plain, secret)


def test_equal_ratios_weigh_one():
    """w_max = w_min: no division by zero."""
    clients, _ = some_clients()
    signatures = classwise(clients, [[9, 9, 9]] * 4)
    bounds = ratio_range(signatures, "shifted")
    assert bounds == (1, 1)
    even = class_angle(signatures, signatures, "smallest", "shifted", 0.5, bounds)
    assert torch.equal(even, class_angle(signatures, signatures, "smallest", "uniform", 0.5, (1, 1)))


def test_one_sided_classes_are_at_180_and_missing_ones_at_0():
    """Of three classes one is shared (0 degrees), one is held by one only, one by none: (0 + 180 + 0) / 3."""
    one = np.eye(F)[:1]
    signatures = classwise([{0: one, 1: one}, {0: one}], None)
    assert class_angle(signatures, signatures, "smallest", "uniform", 0.5, (1, 1))[0].tolist() == [0, 60]


def test_a_client_without_any_vectors_is_at_180_of_every_class_held():
    """Black images: nothing of any class."""
    one = np.eye(F)[:1]
    signatures = classwise([{0: one, 1: one, 2: one}, {}], None)
    assert class_angle(signatures, signatures, "smallest", "uniform", 0.5, (1, 1)).tolist() == [[0, 180], [180, 0]]


@pytest.mark.parametrize("angle", ANGLES)
def test_class_angles_take_every_phi(angle):
    """With one class and no weights, V is Phi."""
    a, b = drawn(21, 2), drawn(22, 3)
    signatures = classwise([{0: a[0]}, {0: b[0]}], None, classes=1)
    found = class_angle(signatures, signatures, angle, "uniform", 0.5, (1, 1))
    assert float(found[0, 1]) == pytest.approx(LITERAL[angle](a[0], b[0]), abs=1e-4)


def test_newcomers_are_weighed_inside_the_frozen_range():
    """A disparity beyond the first clients' largest weighs 1 + delta, not more."""
    u, w = np.array([[1.0, 0]]), np.array([[0, 1.0]])
    a, b = (classwise([{0: side}], [[count]], classes=1) for side, count in ((u, 5000), (w, 1)))
    assert float(class_angle(a, b, "smallest", "shifted", 0.5, (1.0, 1.2))) == pytest.approx(135)


# Updates, weights, trajectories -----------------------------------------------------------------------------------


def test_update_angles_reach_180():
    """Along, across and against: 0, 90 and 180 degrees, whatever the lengths; a zero update is at 90 from all."""
    updates = tensor([[2.0, 0], [0.1, 0], [0, 3], [-1, 0], [0, 0]])
    assert update_angle(updates[:1], updates)[0].tolist() == pytest.approx([0, 0, 90, 180, 90])


def test_update_angles_equal_a_double_loop():
    """arccos of the normalised product, in float64."""
    updates = torch.from_numpy(np.random.default_rng(0).normal(size=(5, 40)).astype(np.float32))
    found = update_angle(updates, updates)
    for i, a in enumerate(updates.double().numpy()):
        for j, b in enumerate(updates.double().numpy()):
            cos = min(1.0, a @ b / np.linalg.norm(a) / np.linalg.norm(b))
            assert float(found[i, j]) == pytest.approx(math.degrees(math.acos(cos)), abs=1e-4)


def test_cosine_of_a_zero_vector_is_one():
    """No direction, no likeness; and no division by zero."""
    vectors = tensor([[1.0, 0], [-1, 0], [0, 0]])
    assert cosine(vectors, vectors).tolist() == [[0, 2, 1], [2, 0, 1], [1, 1, 1]]


@pytest.mark.parametrize(("name", "apart"), [("l2", 5), ("l1", 7), ("cosine", 1 - 0.6)])
def test_distances_between_vectors(name, apart):
    """(1, 0) and (1 + 3, 4), (1, 0) and (3, 4) for the cosine."""
    a, b = tensor([[1.0, 0]]), tensor([[3.0, 4] if name == "cosine" else [4.0, 4]])
    assert float(DISTANCES[name](a, b)) == pytest.approx(apart)
    assert DISTANCES[name](a, b).dtype == torch.float64


@pytest.mark.parametrize("name", DISTANCES)
def test_equal_weights_are_at_zero(name):
    """Exactly, up to float32's rounding, which a cut without a scale would take for groups; real steps are kept."""
    a = 1000 + torch.from_numpy(np.random.default_rng(1).random((1, 300)))
    assert float(DISTANCES[name](a, a)) == 0
    assert float(DISTANCES[name](a.double(), a.float())) == 0
    b = a.clone()
    b[0, 0] += 1
    assert name == "cosine" or float(DISTANCES[name](a, b)) == pytest.approx(1, rel=1e-6)


def test_trajectory_distance_is_a_mean_over_classes():
    """Points of class 0 are 5 apart, those of class 1 are 1 apart: 3."""
    a = tensor([[[0.0, 0.0], [0.0, 0.0]]])
    b = tensor([[[3.0, 0.0], [4.0, 1.0]]])
    assert trajectory_distance(a, b).tolist() == [[3]]
    assert trajectory_distance(a, a).tolist() == [[0]]


# Blocks -----------------------------------------------------------------------------------------------------------


def everything(bases, vectors, points, signatures):
    """Every distance there is, of a set of clients to itself and to some others."""
    few = Ragged(bases.values[:2], bases.length[:2])
    for angle in ANGLES.values():
        yield angle(bases, bases)
        yield angle(bases, few)
    for distance in (*DISTANCES.values(), update_angle):
        yield distance(vectors, vectors)
        yield distance(vectors, vectors[:2])
    yield trajectory_distance(points, points)
    yield class_angle(signatures, signatures, "smallest", "shifted", 0.5, ratio_range(signatures, "shifted"))
    yield symmetric(class_angle(signatures, signatures, "mean", "uniform", 0.5, (1, 1)))


@pytest.mark.parametrize("block", [1, 2, 9, 40, 10**9])
def test_blocks_change_nothing(monkeypatch, block):
    """From one pair at a time to all at once: the same distances, ragged clients and one without vectors included."""
    draw = torch.Generator().manual_seed(4)
    vectors, points = torch.randn(7, 30, generator=draw), torch.randn(7, 2, 3, generator=draw)
    bases, signatures = ragged(*drawn(3, 3, 1, 2, 0, 3, 2, 1)), classwise(*some_clients())
    whole = list(everything(bases, vectors, points, signatures))
    monkeypatch.setattr(proximity, "ROOM", {"cpu": block})
    for found, expected in zip(everything(bases, vectors, points, signatures), whole, strict=True):
        assert found.numpy() == pytest.approx(expected.numpy(), abs=1e-6)


@pytest.mark.parametrize("n", [0, 1])
def test_nobody_or_one(n):
    """An empty matrix, or a zero."""
    some = Ragged(torch.rand(n, 2, F), torch.full((n,), 2))
    for angle in ANGLES.values():
        assert symmetric(angle(some, some)).shape == (n, n)
    for distance in (*DISTANCES.values(), update_angle):
        assert symmetric(distance(torch.rand(n, 5), torch.rand(n, 5))).shape == (n, n)


@pytest.mark.parametrize("name", ["smallest", "mean", "sum"])
def test_many_vectors_are_measured_as_few(name):
    """Above eight angles an SVD takes the place of rotations: scipy's angles on both sides of the limit."""
    for rank in (8, 9):
        a, b = drawn(rank, rank, features=40), drawn(rank + 9, rank + 1, features=40)
        assert float(ANGLES[name](ragged(*a), ragged(*b))) == pytest.approx(LITERAL[name](a[0], b[0]), abs=1e-3)


def test_rotations_find_eigenvalues_of_any_multiplicity():
    """Also equal ones, and zero: as LAPACK, to the last digits."""
    rng = np.random.default_rng(0)
    for values in ([1, 1, 0.3], [1, 1, 1], [0, 0, 0], [1, 1 - 1e-12, 0], [0.9, 0.5, 0.1], [1, 1e-9, 1e-9, 0.5]):
        turn = np.linalg.qr(rng.normal(size=(len(values), len(values))))[0]
        matrix = turn @ np.diag(values) @ turn.T
        upper = {(p, q): torch.tensor([[matrix[p, q]]]) for p in range(len(values)) for q in range(p, len(values))}
        found = sorted(proximity._eigenvalues(upper, len(values)).flatten().tolist())
        assert found == pytest.approx(sorted(values), abs=1e-14)


@pytest.mark.parametrize("degree", [1e-3, 1e-2, 1.0, 45.0, 89.99])
def test_small_angles_are_not_lost_near_a_cosine_of_one(degree):
    """A hundredth of a degree is a cosine of 1 - 1.5e-8: found in float64, where float32 would see none."""
    turn = math.radians(degree)
    a, b = np.eye(5)[:1], np.array([[math.cos(turn), math.sin(turn), 0, 0, 0]])
    bases = [Ragged(torch.from_numpy(side)[None], tensor([1])) for side in (a, b)]
    assert float(smallest_angle(*bases)) == pytest.approx(degree, abs=1e-6)


def test_long_vectors_far_from_the_origin_keep_their_distances():
    """Products are taken about the middle of a block: 1e4 away from the origin, 1 apart is 1 apart."""
    points = torch.from_numpy(np.random.default_rng(2).normal(size=(6, 50)))
    literal = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")
    assert DISTANCES["l2"](points + 1e4, points + 1e4).numpy() == pytest.approx(literal.numpy(), rel=1e-8)


# Real images ------------------------------------------------------------------------------------------------------

CIFAR_PART = [0, 7.10, 6.68, 8.70, 9.40, 10.61, 10.84, 7.63, 6.87, 9.34]  # aeroplanes against all, 20,000 images
CIFAR_WHOLE = [0, 6.83, 6.55, 8.65, 9.29, 10.48, 10.78, 7.56, 6.66, 8.99]  # as in PACFL's public notebook


@pytest.mark.slow
@needs_data
def test_cifars_class_angles_are_pacfls():
    """p = 3, column angles of raw pixels: the public notebook's row on the whole set, ours on the part of 20,000."""
    images = open_dataset("cifar10", REAL)
    x, y = (torch.from_numpy(half) for half in (images.x_train, images.y_train))
    bases = ragged(*(leading_vectors(x[y == c].flatten(1).float() / 255, 3) for c in range(10)))
    row = column_angle(bases, bases)[0].tolist()
    assert row == pytest.approx(CIFAR_WHOLE if len(y) == 50_000 else CIFAR_PART, abs=0.006)
