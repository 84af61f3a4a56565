"""What happens to the rows of a client: rotation, swapped labels, erosion, dilation, noise.

A shift is a string that is stored with the plan: "" (none), "rotate:90", "swap:1-7", "erode", "dilate", "noise:0.1",
or a chain of these joined by "+", applied from left to right.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from umbel.data.clients import IntArray
from umbel.errors import UmbelError, unknown
from umbel.seeds import generator

Images = NDArray[Any]  # (n, channels, height, width), uint8
ROTATIONS = ("", "rotate:90", "rotate:180", "rotate:270")
SWAPS = ("swap:1-7", "swap:2-7", "swap:4-7", "swap:3-8", "swap:5-6", "swap:7-9")
FEATURES = ("", "erode", "dilate")
NEIGHBOURS = (1, 1, 3, 3)  # OpenCV's 3 x 3 kernel of ones, image by image

MOST_STEPS = 100  # of one shift

Shifter = Callable[..., list[str]]  # (size, blocked, **parameters)


def apply(shift: str, x: Images, y: IntArray, rows: IntArray) -> tuple[Images, IntArray]:
    """The shifted images and labels; `rows` says which rows of the data set these are (noise depends on it)."""
    must_be_known(shift)
    for step in shift.split("+") if shift else []:
        name, _, value = step.partition(":")
        try:
            x, y = SHIFTS[name](value, x, y, rows)
        except UmbelError:
            raise
        except (ValueError, OverflowError):
            raise UmbelError(f"A shift reads like '{EXAMPLES[name]}'. Got '{step}' instead.") from None
    return x, y


def must_be_known(shift: str) -> None:
    """Raise where a step of a shift has no name that is known here, or where there are very many."""
    steps = shift.split("+") if shift else []
    for step in steps:
        if (name := step.partition(":")[0]) not in SHIFTS:
            raise unknown("shift", name, SHIFTS)
    if len(steps) > MOST_STEPS:
        raise UmbelError(f"A shift has at most {MOST_STEPS} steps. Got {len(steps)} instead.")


def _rotate(value: str, x: Images, y: IntArray, rows: IntArray) -> tuple[Images, IntArray]:
    """Counter-clockwise, in quarter turns."""
    turns, rest = divmod(int(value), 90)
    if rest:
        raise UmbelError(f"A rotation is a multiple of 90 degrees. Got {value} instead.")
    if x.shape[-1] != x.shape[-2]:
        raise UmbelError(f"Only square images can be rotated. Got {x.shape[-2]} x {x.shape[-1]} pixels instead.")
    return np.rot90(x, turns, axes=(-2, -1)), y


def _swap(value: str, x: Images, y: IntArray, rows: IntArray) -> tuple[Images, IntArray]:
    one, other = (int(label) for label in value.split("-"))
    if max(one, other) >= 2**31:
        raise ValueError("no data set has as many labels")
    return x, np.where(y == one, other, np.where(y == other, one, y))


def felt(shift: str, y: IntArray) -> str:
    """The shift, or none where it swaps labels that are not among `y`: such a client is like an unshifted one."""
    name, _, value = shift.partition(":")
    return "" if name == "swap" and not np.isin([int(label) for label in value.split("-")], y).any() else shift


def normal(shift: str) -> str:
    """The same shift in one spelling: swaps come last, and one that is undone is left out; turns add up to one, first.

    Turning goes before or after erosion and dilation alike. With noise, which no turn moves, turns stay where they are.
    """
    looks: list[str] = []
    swaps: list[str] = []
    for step in filter(None, shift.split("+")):
        name, _, value = step.partition(":")
        if name != "swap":
            looks.append(step)
        elif swaps[-1:] == [same := f"swap:{'-'.join(sorted(value.split('-'), key=int))}"]:
            swaps.pop()
        else:
            swaps.append(same)
    if not any(step.startswith("noise:") for step in looks):
        turn = sum(int(step.partition(":")[2]) for step in looks if step.startswith("rotate:")) % 360
        looks = [f"rotate:{turn}"] * bool(turn) + [step for step in looks if not step.startswith("rotate:")]
    return "+".join(looks + swaps)


def grouped(shift: str) -> str:
    """What of a shift makes groups, in one spelling: all but noise, which differs from client to client."""
    return normal("+".join(step for step in shift.split("+") if not step.startswith("noise:")))


def on_top(own: str, more: str, y: IntArray) -> str:
    """A client's own shift and another on top of it, in one spelling; `y` are its labels before both."""
    for step in more.split("+"):
        swaps = [each for each in own.split("+") if each.startswith("swap:")]
        _, labels = apply("+".join(swaps), y, y, y)  # a swap looks at no image
        own = "+".join(filter(None, (own, felt(step, labels))))
    return normal(own)


def _erode(value: str, x: Images, y: IntArray, rows: IntArray) -> tuple[Images, IntArray]:
    return ndimage.grey_erosion(x, size=NEIGHBOURS, mode="constant", cval=255), y  # white outside: never the smallest


def _dilate(value: str, x: Images, y: IntArray, rows: IntArray) -> tuple[Images, IntArray]:
    return ndimage.grey_dilation(x, size=NEIGHBOURS, mode="constant", cval=0), y  # black outside: never the largest


def _noise(value: str, x: Images, y: IntArray, rows: IntArray) -> tuple[Images, IntArray]:
    """Gaussian, of standard deviation `value` x 255; drawn by row number and level, so alike at every client."""
    level = float(value)
    if not 0 <= level <= 1:
        raise UmbelError(f"The level of noise is from 0 to 1, where white is 1. Got {value} instead.")
    noisy = np.empty_like(x)
    for image, row, out in zip(x, rows, noisy, strict=True):
        grain = generator("noise", int(row), f"{level:g}").standard_normal(image.shape)
        out[:] = np.clip(np.rint(image + 255 * level * grain), 0, 255)
    return noisy, y


SHIFTS = {"rotate": _rotate, "swap": _swap, "erode": _erode, "dilate": _dilate, "noise": _noise}
EXAMPLES = {"rotate": "rotate:90", "swap": "swap:1-7", "erode": "erode", "dilate": "dilate", "noise": "noise:0.1"}


# Which client gets which shift: one for each of `size` clients, which are all clients or one group of a partition.
# `blocked` asks for contiguous blocks; else the kinds are dealt in turn, client by client.


def rotation_4(size: int, blocked: bool) -> list[str]:
    """0, 90, 180, 270 degrees."""
    return _deal(ROTATIONS, size, blocked)


def swap_6(size: int, blocked: bool) -> list[str]:
    """Six pairs of labels that change places."""
    return _deal(SWAPS, size, blocked)


def feature_3(size: int, blocked: bool) -> list[str]:
    """As it is, eroded, dilated: client id mod 3, never in blocks."""
    return _deal(FEATURES, size, blocked=False)


def noise(size: int, blocked: bool, *, level: float = 0.1) -> list[str]:
    """From none for the first client up to `level` for the last one (NIID-Bench)."""
    levels = [level * i / max(1, size - 1) for i in range(size)]
    return [f"noise:{own:.4g}" if own else "" for own in levels]


def _deal(kinds: tuple[str, ...], size: int, blocked: bool) -> list[str]:
    turns = np.arange(size) % len(kinds)
    return [kinds[k] for k in (np.sort(turns) if blocked else turns)]


def colour_32(x: Images) -> Images:
    """Zeros around the images up to 32 x 32 pixels, grey repeated in three channels: how mix-4 makes its sets alike."""
    high, wide = 32 - x.shape[2], 32 - x.shape[3]
    edges = ((0, 0), (0, 0), (high // 2, high - high // 2), (wide // 2, wide - wide // 2))
    return np.repeat(np.pad(x, edges), 3 // x.shape[1], axis=1)
