"""Rows of one's own: what is taken as it is, what is changed aloud, and one sentence for everything else."""

import re

import numpy as np
import pytest

import umbel as u
from umbel.data.rows import Like, laid_out, site

X, Y = np.zeros((4, 3), np.float32), np.array([0, 1, 2, 0])
IMAGES = np.zeros((4, 1, 2, 2), np.float32)


def with_(x: np.ndarray, place: tuple[int, ...], value: object) -> np.ndarray:
    """A copy with one other value."""
    copy = x.copy()
    copy[place] = value
    return copy


def population(objective: object = 3, **sites: tuple) -> u.Population:
    """Sites of one's own; a good one before them."""
    return u.Population.of_sites({"north": (X, Y, X, Y), **sites}, objective)


# What is refused: the rows of a site 'south' beside a good one, what a model is for, and the sentence.
REFUSED = {
    "three arrays": ((X, Y, X), 3,
                "The rows of 'south' are (x_train, y_train), and (x_test, y_test) behind them if there"
                     " are some. Got 3 arrays."),
    "one array": (X, 3,
                "The rows of 'south' are (x_train, y_train), and (x_test, y_test) behind them if there are some."
                  " Got one ndarray."),
    "lengths": ((X, Y[:3]), 3, "Every row of 'south' needs a target. Got 4 rows and 3 targets."),
    "test lengths": ((X, Y, X[:1], Y), 3, "Every row of 'south' (test rows) needs a target. Got 1 rows and 4 targets."),
    "no rows": ((X[:0], Y[:0]), 3, "A client needs rows to train on, and 'south' has none."),
    "shape": ((np.zeros((4, 5)), Y), 3, "The inputs of 'south' must be (3,), as those of 'north'. Got (5,) instead."),
    "shape of a half": ((X, Y, np.zeros((4, 2)), Y), 3,
                        "The inputs of 'south' (test rows) must be (3,), as those of 'north'. Got (2,) instead."),
    "no columns": ((np.zeros(4), Y), 3, "The inputs of 'south' must be (rows, columns) or (rows, channels, height,"
                   " width). Got the shape (4,) instead."),
    "ragged": (([[1.0], [1.0, 2.0]], Y[:2]), 3,
               "The inputs of 'south' must be one array. Got rows of unequal shapes."),
    "a scalar": ((X, 3), 3, "The targets of 'south' must be an array, row by row. Got 3 instead."),
    "nan": ((with_(X, (2, 1), np.nan), Y), 3,
                "The inputs of 'south' must be finite float32. Got nan in row 2, column 1:"
            " fill it in, or leave the row out."),
    "too large": ((with_(X.astype(float), (3, 0), 1e39), Y), 3,
                "The inputs of 'south' must be finite float32. Got 1e+39"
                  " in row 3, column 0: fill it in, or leave the row out."),
    "texts": ((np.full((4, 3), "red"), Y), 3, "The inputs of 'south' must be numbers. Got <U3, as in red."),
    "objects": ((with_(X.astype(object), (1, 2), None), Y), 3,
                "The inputs of 'south' must be numbers. Got an array of objects, as None in row 1: give it a type, as"
                " by astype(np.float32)."),
    "int32": ((X.astype(np.int32), Y), 3,
                "The inputs of 'south' must be floats, uint8 images or int64 tokens. Got int32:"
              " say which is meant by x.astype(np.float32) or x.astype(np.int64)."),
    "tokens": ((X.astype(np.int64), Y), 3,
               "The inputs of 'south' must be floats, as those of 'north'. Got int64 instead."),
    "float labels": ((X, Y + 0.7), 3, "The labels of 'south' must be whole numbers from 0 to 2. Got float64, as in 0.7:"
                     " give whole numbers, or objective=Regress() for numbers to be predicted."),
    "nan labels": ((X, np.full(4, np.nan)), 3,
                "The labels of 'south' must be whole numbers from 0 to 2. Got float64, as"
                   " in nan: give whole numbers, or objective=Regress() for numbers to be predicted."),
    "a label too high": ((X, Y, X, with_(Y, (3,), 3)), 3,
                         "The labels of 'south' (test rows) must lie in 0 .. 2. Got 3 in row 3 instead."),
    "a label below 0": ((X, with_(Y, (1,), -1)), 3,
                "The labels of 'south' must lie in 0 .. 2. Got -1 in row 1 instead."),
    "texts beside numbers": ((X, np.array(list("abca"))), 3, "The labels of all sites must be texts or whole numbers"
                             " alike. Got texts at 'south' and int64 at 'north' instead."),
    "objects as labels": ((X, np.array(["a", None, "b", "c"], object)), 3,
                          "The targets of 'south' must be numbers or texts. Got an array of objects, as None in row 1:"
                          " give it a type, as by astype(np.float32)."),
    "texts for numbers": ((X, np.array(list("abca"))), u.Regress(), "The targets of 'south' must be numbers. Got <U1"
                          " instead."),
    "a number that is none": ((X, with_(Y.astype(float), (2,), np.inf)), u.Regress(),
                              "The targets of 'south' must be finite. Got inf in row 2 instead."),
    "a number too large": ((X, with_(Y.astype(float), (2,), 1e39)), u.Regress(),
                           "The targets of 'south' must be finite. Got 1e+39 in row 2 instead."),
    "columns of targets": ((X, Y), u.Regress(2),
                "The targets of 'north' must be (rows, 2). Got the shape (4,) instead."),
    "no objective": ((X, Y), "classify",
                     "An objective is a number of classes, Classify, Regress or NextToken. Got 'classify' instead."),
    "inferred from floats": ((X, Y + 0.5), None, "What a model is for is inferred from labels alone, whole numbers or"
                             " texts, one a row. The targets of 'south' are float64 of shape (4,): give"
                             " objective=Regress() for numbers, NextToken(vocabulary) for tokens."),
    "inferred with a gap": ((X, with_(Y, (0,), 4)), None,
                            "The number of classes is inferred where labels are 0, 1, 2 ... without a gap. Got 4"
                            " labels from 0 to 4: give classes=..."),
}  # fmt: skip


@pytest.mark.parametrize(("arrays", "objective", "sentence"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_wrong_is_said_in_one_sentence(arrays, objective, sentence):
    """It names the site, the row and the value."""
    with pytest.raises(u.UmbelError) as error:
        population(objective, south=arrays)
    assert str(error.value) == sentence


@pytest.mark.parametrize(("x", "sentence"), [
    (np.full((4, 1, 2, 2), 17.0), "The images of 'a' must be uint8, or floats in [0, 1] or around 0. Got floats from 17"
     " to 17: give uint8, or divide by 255."),
    (with_(IMAGES, (1, 0, 1, 0), -np.inf),
     "The inputs of 'a' must be finite float32. Got -inf in row 1, place (0, 1, 0):"
     " fill it in, or leave the row out."),
    (np.zeros((4, 7), np.uint8), "The inputs of 'a' are uint8 in one line, and could be pixels or tokens: give float32"
     " for numbers, int64 for tokens."),
    (with_(np.zeros((4, 7), np.int64), (2, 6), -5),
     "The inputs of 'a' are int64, which are tokens from 0. Got -5 in row"
     " 2, column 6: give float32 for numbers."),
    (np.zeros((4, 7), bool), "The inputs of 'a' must be floats, uint8 images or int64 tokens. Got bool: say which is"
     " meant by x.astype(np.float32) or x.astype(np.int64)."),
])  # fmt: skip
def test_inputs_that_could_mean_two_things_are_refused(x, sentence):
    """Bytes as floats, bytes in a line, whole numbers below 0."""
    with pytest.raises(u.UmbelError) as error:
        u.Population.of_sites({"a": (x, Y)}, 3)
    assert str(error.value) == sentence


def test_the_halves_of_a_site_are_of_one_kind():
    """uint8 pixels to train on, and floats to be tested on, would be 255 times apart once they are joined."""
    bytes_ = np.zeros((4, 1, 2, 2), np.uint8)
    with pytest.raises(u.UmbelError) as error:
        u.Population.of_sites({"a": (bytes_, Y, IMAGES, Y)}, 3)
    assert str(error.value) == ("The inputs of 'a' (test rows) must be uint8 images, as its training rows."
                                " Got float32 instead.")


def test_what_is_taken_and_as_what():
    """Floats become float32, uint8 images and int64 tokens stay; a test half may be missing or empty."""
    half = np.float16([[0.5, -2, 300]] * 4)
    for x in (half, half.astype(float), half.astype(np.float32)):
        people = u.Population.of_sites({"a": (x, Y), "b": (x[:2], Y[:2], x[:0], Y[:0]), "c": (x, Y, x, Y)}, classes=3)
        assert people.pool.x.dtype == np.float32
        assert people.pool.x.tolist() == [[0.5, -2, 300]] * 14
        assert [rows.tolist() for rows in people.train] == [[0, 1, 2, 3], [4, 5], [6, 7, 8, 9]]
        assert [rows.tolist() for rows in people.test] == [[], [], [10, 11, 12, 13]]
    kinds = {}
    for x in (np.full((4, 1, 2, 2), 255, np.uint8), np.full((4, 5), 255), IMAGES + 1, IMAGES - 3, X + 17):
        people = u.Population.of_sites({"a": (x, Y)}, 3)
        assert people.pool.x.dtype == (x.dtype if x.dtype != float else np.float32)
        assert np.array_equal(people.pool.x, x)
        kinds[str(people.pool.x.dtype)] = people.tokens
    assert kinds == {"uint8": False, "int64": True, "float32": False}
    standardised = with_(IMAGES, (0, 0, 0, 0), -2) * 3 + 5  # above 1 and below 0 over both halves
    assert len(u.Population.of_sites({"a": (standardised, Y, IMAGES + 9, Y)}, 3).pool.x) == 8


def test_labels_that_are_texts_are_numbered_in_sorted_order_over_all_sites():
    """'b' is 1 at a site that never saw 'a'; the mapping is kept, and facts say that it was inferred."""
    sites = {"one": (X, np.array(["b", "b", "c", "c"])), "two": (X, np.array(["a", "b", "a", "a"], object))}
    for given in (None, 3, u.Classify(3)):
        people = u.Population.of_sites(sites, given)
        assert people.objective == u.Classify(3, labels=("a", "b", "c"))
        assert people.pool.y.tolist() == [1, 1, 2, 2, 0, 1, 0, 0]
        assert people.facts["inferred"] == "3 classes, in the order a, b, c"
    said = u.Population.of_sites(sites, u.Classify(4, labels=("c", "b", "x", "a")))
    assert said.pool.y.tolist() == [1, 1, 0, 0, 3, 1, 3, 3]
    assert "inferred" not in said.facts
    encoded = u.Population.of_sites({"one": (X, np.array([b"b", b"a", b"b", b"a"]))})
    assert (encoded.objective.labels, encoded.pool.y.tolist()) == (("a", "b"), [1, 0, 1, 0])
    with pytest.raises(u.UmbelError, match=r"have 3 different labels: a, b, c\. Got 2 classes: give as many"):
        u.Population.of_sites(sites, classes=2)


def test_what_a_model_is_for_is_inferred_from_labels_alone():
    """And said; what is given is not said again."""
    assert population(None).objective == u.Classify(3)
    assert population(None).facts["inferred"] == "3 classes, from labels 0 to 2"
    assert "inferred" not in population(3).facts
    assert population(None, south=(X, Y == 0)).pool.y.tolist() == [*Y, *Y, 1, 0, 0, 1]
    with pytest.raises(u.UmbelError, match=r"is given once, as 'objective' or as 'classes'\. Got both"):
        u.Population.of_sites({"a": (X, Y)}, 3, classes=3)
    with pytest.raises(u.UmbelError, match=r"The truth has one group for each of the 1 sites\. Got 2 instead"):
        u.Population.of_sites({"a": (X, Y)}, 3, truth=(0, 1))
    with pytest.raises(u.UmbelError, match=r"A federation needs at least one site\. Got none\."):
        u.Population.of_sites({}, 3)


def test_images_may_be_laid_out_otherwise_where_the_shape_is_known():
    """Channels last, or without the axis of a single channel."""
    grey, colour = np.arange(24).reshape(2, 1, 3, 4), np.arange(72).reshape(2, 3, 3, 4)
    assert np.array_equal(laid_out(grey[:, 0], (1, 3, 4)), grey)
    assert np.array_equal(laid_out(colour.transpose(0, 2, 3, 1), (3, 3, 4)), colour)
    assert laid_out(colour, (3, 3, 4)) is colour
    [(x, _)] = site("a", ((grey[:, 0] / 99), Y[:2]), u.Classify(3), Like((1, 3, 4), ("numbers",), "it must be"))
    assert x.shape == (2, 1, 3, 4)
    assert x.flags.c_contiguous


def test_simulate_checks_a_set_and_clients_of_ones_own():
    """A Dataset and a Population made by hand, in the same sentences; arrays that cannot be written to are copied."""
    bad = with_(X, (0, 1), np.nan)
    rows = [np.arange(2), np.arange(2, 4)]
    for given, of in ((u.Dataset("mine", X, Y, bad, Y, 3), "the set 'mine' (test rows)"),
                      (u.Population(u.Pool(bad, Y), rows, rows, np.zeros(2, np.int64), 3), "the pool")):
        with pytest.raises(u.UmbelError, match=re.escape(f"{of} must be finite float32. Got nan in row 0, column 1:")):
            u.simulate(given, clients=2)
    with pytest.raises(u.UmbelError, match=r"The labels of the set 'mine' must be whole numbers from 0 to 2\. Got"):
        u.simulate(u.Dataset("mine", X, Y / 2, X, Y, 3), clients=2)
    x = X.astype(float)
    x.setflags(write=False)
    fed = u.simulate(u.Population(u.Pool(x, Y), rows, rows, np.zeros(2, np.int64), 3), device="cpu")
    assert fed.clients.population.pool.x.dtype == np.float32
    with pytest.raises(u.UmbelError) as error:
        u.simulate(u.Population.of_sites({"a": (X.astype(np.int64), Y)}, 3), model="mlp")
    assert str(error.value) == ("The model 'mlp' takes numbers, and int64 inputs are tokens: give float32, take 'gru',"
                                " or a network of your own.")
    with pytest.raises(u.UmbelError) as error:
        u.simulate(population(), model="lenet5")
    assert str(error.value) == ("The model 'lenet5' takes images (channels, height, width). Got inputs of shape (3,):"
                                " take 'mlp', or a network of your own.")


# Kinds of target


@pytest.mark.parametrize("seed", range(20))
def test_the_kind_of_a_number_is_its_bin(seed):
    """Every number lies between its kind's borders; kinds follow the order of numbers, by the first column."""
    rng = np.random.default_rng(seed)
    bins = tuple(np.unique(rng.normal(size=rng.integers(1, 6)).round(1)).tolist())
    goal = u.Regress(2, bins=bins)
    y = rng.normal(size=(50, 2)).round(1)
    kinds = goal.groups_of(y)
    edges = [-np.inf, *bins, np.inf]
    assert goal.groups == len(bins) + 1
    assert all(edges[kind] < number <= edges[kind + 1] for kind, number in zip(kinds, y[:, 0], strict=True))
    assert (np.diff(kinds[np.argsort(y[:, 0])]) >= 0).all()
    assert np.array_equal(u.Regress(bins=bins).groups_of(y[:, 0]), kinds)
    assert kinds.dtype == np.int64


def test_kinds_of_other_targets():
    """A label is its own kind; numbers without bins and tokens are of one kind, and count as having none."""
    assert u.Classify(3).groups_of(Y).tolist() == Y.tolist()
    assert u.Regress().groups_of(np.arange(3.0)).tolist() == [0, 0, 0]
    assert u.NextToken(5, 2).groups_of(np.ones((3, 2))).tolist() == [0, 0, 0]
    assert (u.Regress().groups, u.NextToken(5).groups, u.Regress(bins=4).groups) == (0, 0, 4)
