"""Shifts: what happens to images and labels."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from umbel.data import shift
from umbel.errors import UmbelError

quick = settings(deadline=None, max_examples=25)
images = arrays(np.uint8, st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 6), st.integers(1, 6)))


def apply(kind: str, x: np.ndarray, y: list[int] | None = None, rows: list[int] | None = None) -> tuple[Any, Any]:
    labels = np.array(y if y is not None else [0] * len(x))
    return shift.apply(kind, x, labels, np.array(rows if rows is not None else range(len(x))))


def by_hand(x: np.ndarray, choose: Callable[[list[int]], int]) -> np.ndarray:
    """The least or greatest of the up to nine pixels around each pixel; outside the image there is nothing."""
    out = np.empty_like(x)
    for n, c, i, j in np.ndindex(x.shape):
        around = x[n, c, max(0, i - 1) : i + 2, max(0, j - 1) : j + 2]
        out[n, c, i, j] = choose(around.ravel().tolist())
    return out


def test_no_shift_changes_nothing() -> None:
    """The empty shift gives back what it got."""
    x, y = np.zeros((1, 1, 2, 2), np.uint8), np.array([3])
    got = shift.apply("", x, y, np.array([0]))
    assert got[0] is x
    assert got[1] is y


def test_rotation_is_counter_clockwise() -> None:
    """After 90 degrees the right column is the top row."""
    x = np.array([[[[1, 2], [3, 4]]]], np.uint8)
    assert apply("rotate:90", x)[0].tolist() == [[[[2, 4], [1, 3]]]]
    assert apply("rotate:180", x)[0].tolist() == [[[[4, 3], [2, 1]]]]
    assert apply("rotate:270", x)[0].tolist() == [[[[3, 1], [4, 2]]]]


def test_rotation_refuses_what_it_cannot_turn() -> None:
    """Images that are not square, and angles between quarter turns, are refused."""
    with pytest.raises(UmbelError, match=r"Only square images can be rotated. Got 2 x 3"):
        apply("rotate:90", np.zeros((1, 1, 2, 3), np.uint8))
    with pytest.raises(UmbelError, match=r"multiple of 90 degrees. Got 45"):
        apply("rotate:45", np.zeros((1, 1, 2, 2), np.uint8))


def test_swap_exchanges_two_labels() -> None:
    """1 becomes 7 and 7 becomes 1; twice is nothing."""
    x = np.zeros((4, 1, 1, 1), np.uint8)
    assert apply("swap:1-7", x, [0, 1, 7, 9])[1].tolist() == [0, 7, 1, 9]
    assert apply("swap:1-7+swap:1-7", x, [0, 1, 7, 9])[1].tolist() == [0, 1, 7, 9]


@quick
@given(x=images)
def test_erosion_and_dilation_are_3_by_3(x: np.ndarray) -> None:
    """Least and greatest of the 3 x 3 neighbourhood, inside each image and channel; the border never wins."""
    assert np.array_equal(apply("erode", x)[0], by_hand(x, min))
    assert np.array_equal(apply("dilate", x)[0], by_hand(x, max))


def test_dilation_of_a_point() -> None:
    """One bright pixel in a corner becomes a 2 x 2 square, and erosion takes it away."""
    x = np.zeros((1, 1, 3, 3), np.uint8)
    x[0, 0, 0, 0] = 200
    assert apply("dilate", x)[0][0, 0].tolist() == [[200, 200, 0], [200, 200, 0], [0, 0, 0]]
    assert not apply("erode", x)[0].any()
    assert (apply("erode", np.full((1, 1, 2, 2), 9, np.uint8))[0] == 9).all()


def test_noise_belongs_to_row_and_level() -> None:
    """The same row has the same noise in any company; another row or level has other noise."""
    x = np.full((3, 1, 8, 8), 128, np.uint8)
    together = apply("noise:0.1", x, rows=[5, 6, 7])[0]
    assert np.array_equal(apply("noise:0.10", x[:1], rows=[6])[0][0], together[1])
    assert not np.array_equal(together[0], together[1])
    assert not np.array_equal(apply("noise:0.2", x[:1], rows=[6])[0][0], together[1])


def test_noise_has_its_level_and_is_clipped() -> None:
    """The spread is level x 255, and pixels stay bytes: black does not wrap round to white."""
    grey = np.full((20, 1, 20, 20), 128, np.uint8)
    noisy = apply("noise:0.05", grey)[0]
    assert noisy.dtype == np.uint8
    assert abs(noisy.std() / 255 - 0.05) < 0.002
    assert abs(noisy.mean() - 128) < 1
    dark = apply("noise:0.1", np.zeros((20, 1, 20, 20), np.uint8))[0]
    assert 0.4 < (dark == 0).mean() < 0.6
    assert dark.max() < 200


def test_chains_go_from_left_to_right() -> None:
    """A chain is its steps one after the other, in images and labels."""
    x = np.arange(9, dtype=np.uint8).reshape(1, 1, 3, 3)
    turned = apply("rotate:90", x)[0]
    chained = apply("rotate:90+erode+swap:0-2", x, [0])
    assert np.array_equal(chained[0], apply("erode", turned)[0])
    assert chained[1].tolist() == [2]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("rotat:90", "There is no shift 'rotat'. Did you mean 'rotate'?"),
        ("rotate:", "A shift reads like 'rotate:90'. Got 'rotate:' instead."),
        ("swap:17", "A shift reads like 'swap:1-7'. Got 'swap:17' instead."),
        ("noise:loud", "A shift reads like 'noise:0.1'. Got 'noise:loud' instead."),
    ],
)
def test_wrong_shifts_are_refused_in_a_sentence(text: str, sentence: str) -> None:
    """A misspelt shift is named, with the right spelling."""
    with pytest.raises(UmbelError) as caught:
        apply(text, np.zeros((1, 1, 2, 2), np.uint8))
    assert str(caught.value) == sentence


def test_who_gets_which_shift() -> None:
    """Rotations and swaps come in blocks or go round; feature skew always goes round; noise grows."""
    assert shift.rotation_4(5, blocked=True) == ["", "", "rotate:90", "rotate:180", "rotate:270"]
    assert shift.rotation_4(5, blocked=False) == ["", "rotate:90", "rotate:180", "rotate:270", ""]
    assert shift.swap_6(6, blocked=True) == list(shift.SWAPS)
    assert shift.feature_3(4, blocked=True) == ["", "erode", "dilate", ""]
    assert shift.noise(5, blocked=True, level=0.2) == ["", "noise:0.05", "noise:0.1", "noise:0.15", "noise:0.2"]
    assert shift.noise(1, blocked=True) == [""]


def test_a_swap_is_felt_where_one_of_its_labels_is() -> None:
    """A client without label 1 and 7 is not shifted by their swap; other shifts are felt by all."""
    assert shift.felt("swap:1-7", np.array([7, 3])) == "swap:1-7"
    assert shift.felt("swap:1-7", np.array([2, 3])) == ""
    assert shift.felt("rotate:90", np.array([2, 3])) == "rotate:90"


def test_colour_32_pads_and_repeats() -> None:
    """A 28-pixel grey image sits in the middle of 32 x 32 zeros, three times; a 32-pixel colour image is left alone."""
    grey = shift.colour_32(np.full((2, 1, 28, 28), 7, np.uint8))
    assert grey.shape == (2, 3, 32, 32)
    assert grey.sum() == 2 * 3 * 28 * 28 * 7
    assert (grey[:, :, 2:30, 2:30] == 7).all()
    assert np.array_equal(grey[:, 0], grey[:, 2])
    colour = np.arange(3 * 32 * 32).astype(np.uint8).reshape(1, 3, 32, 32)
    assert np.array_equal(shift.colour_32(colour), colour)
