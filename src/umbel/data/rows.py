"""The rows that a person brings, checked in one place: sites of one's own, a Flower node, a newcomer, a whole set.

What is wrong is refused in a sentence with the site, the row and the value. What is changed is said here: floats of any
width become float32, in which networks compute; whole numbers, true and false as labels become int64. uint8 are pixels,
which umbel divides by 255; int64 are tokens, which it hands on as they are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from umbel.errors import UmbelError
from umbel.nets.objective import Classify, Objective, objective_of

Array = NDArray[Any]
Half = tuple[Array, Array]  # inputs and targets
HEAVIEST = 1_000_000  # a weight of a row is less
WORDS = {"pixels": "uint8 images", "numbers": "floats", "tokens": "int64 tokens"}  # the three kinds of input


class Part(NamedTuple):
    """The training or the test rows of a site, as they were given; `of` names them in a sentence."""

    of: str
    x: Array
    y: Array


class Like(NamedTuple):
    """What inputs must be like: this shape, one of these kinds, "as ..."."""

    shape: tuple[int, ...]
    kinds: tuple[str, ...]
    those: str


def site(of: str, arrays: Sequence[Any], objective: Objective, like: Like | None = None) -> list[Half]:
    """The rows of one site, (x_train, y_train) and perhaps (x_test, y_test), as a pool stores them.

    Where `like` says the shape of an image, it may also be given as (height, width, channels), or as (height, width) if
    it has one channel.
    """
    return _checked(of, parts(of, arrays), objective, like)


def sites(given: Mapping[str, Sequence[Any]], objective: Any = None) -> tuple[list[list[Half]], Objective, str]:
    """The rows of all sites, what a model is for, and how that was inferred where it was ("" where not)."""
    if not given:
        raise UmbelError("A federation needs at least one site. Got none.")
    named = {f"'{name}'": parts(f"'{name}'", arrays) for name, arrays in given.items()}
    goal, inferred = _goal([part for own in named.values() for part in own], objective)
    checked: list[list[Half]] = []
    like: Like | None = None
    for of, own in named.items():
        checked.append(_checked(of, own, goal, like))
        first = checked[0][0][0]
        like = like or Like(first.shape[1:], (kind_of(first),), f"those of {of}")
    return checked, goal, inferred


def weights(of: str, given: Any, rows: int) -> NDArray[np.float32]:
    """What the losses of these rows are multiplied by: a number from 0 for each, and not 0 for all."""
    each = np.asarray(given)
    if each.shape != (rows,) or each.dtype.kind not in "fiu":
        raise UmbelError(f"The weights of {of} must be one number for each of its {rows:,} rows. Got {each.dtype} of"
                         f" the shape {each.shape} instead.")
    if len(wrong := np.flatnonzero(~((each >= 0) & (each < HEAVIEST)))):
        raise UmbelError(f"The weights of {of} must be numbers from 0 and below {HEAVIEST:,}. Got {each[wrong[0]]:g} in"
                         f" row {wrong[0]}.")
    if not each.any():
        raise UmbelError(f"The weights of {of} must be above 0 for some row to train on. All of them are 0.")
    return each.astype(np.float32)


def kind_of(x: Array) -> str:
    """What inputs are, by their type: pixels, numbers or tokens."""
    return {"u": "pixels", "i": "tokens"}.get(x.dtype.kind, "numbers")


def parts(of: str, arrays: Sequence[Any]) -> list[Part]:
    """Training rows and, if there are some, test rows; each row with a target, and at least one row to train on."""
    if not isinstance(arrays, tuple | list) or len(arrays) not in (2, 4):
        got = f"{len(arrays)} arrays" if isinstance(arrays, tuple | list) else f"one {type(arrays).__name__}"
        raise UmbelError(f"The rows of {of} are (x_train, y_train), and (x_test, y_test) behind them if there are some."
                         f" Got {got}.")
    halves = []
    for at, half in zip(range(0, len(arrays), 2), (of, f"{of} (test rows)"), strict=False):
        x, y = _array(arrays[at], "inputs", half), _array(arrays[at + 1], "targets", half)
        if len(x) != len(y):
            raise UmbelError(f"Every row of {half} needs a target. Got {len(x)} rows and {len(y)} targets.")
        halves.append(Part(half, x, y))
    if not len(halves[0].x):
        raise UmbelError(f"A client needs rows to train on, and {of} has none.")
    return halves


def _array(given: Any, what: str, of: str) -> Array:
    """An array with rows. Objects are texts, all of them, or refused."""
    try:
        array = np.asarray(given)
    except ValueError:
        raise UmbelError(f"The {what} of {of} must be one array. Got rows of unequal shapes.") from None
    if not array.ndim:
        raise UmbelError(f"The {what} of {of} must be an array, row by row. Got {given!r} instead.")
    if array.dtype.kind == "S":
        return np.char.decode(array, "utf-8", "backslashreplace")
    if array.dtype == object:
        others = [(place[0], value) for place, value in np.ndenumerate(array) if not isinstance(value, str)]
        if others:
            row, value = next((each for each in others if not isinstance(each[1], int | float)), others[0])
            raise UmbelError(f"The {what} of {of} must be numbers{' or texts' * (what == 'targets')}. Got an array of"
                             f" objects, as {value!r} in row {row}: give it a type, as by astype(np.float32).")
        return array.astype(str)
    return array


def _goal(given: list[Part], wanted: Any) -> tuple[Objective, str]:
    """What a model of these rows is for: as wanted, with the names of texts; or what labels say without doubt."""
    goal = None if wanted is None else objective_of(wanted)
    if goal is not None and (not isinstance(goal, Classify) or goal.labels):
        return goal, ""
    texts = [part for part in given if part.y.dtype.kind == "U"]
    if texts:
        return _named(given, texts, goal)
    if goal is not None:
        return goal, ""
    for part in given:
        if part.y.dtype.kind not in "iub" or part.y.ndim != 1:
            raise UmbelError(
                f"What a model is for is inferred from labels alone, whole numbers or texts, one a row. The targets of"
                f" {part.of} are {part.y.dtype} of shape {part.y.shape}: give objective=Regress() for numbers,"
                " NextToken(vocabulary) for tokens."
            )
    seen = np.unique(np.concatenate([part.y for part in given]))
    classes = len(seen)
    if seen[0] != 0 or seen[-1] != classes - 1:
        raise UmbelError(f"The number of classes is inferred where labels are 0, 1, 2 ... without a gap. Got {classes}"
                         f" labels from {seen[0]} to {seen[-1]}: give classes=...")
    return Classify(classes), f"{classes} classes, from labels 0 to {classes - 1}"


def _named(given: list[Part], texts: list[Part], goal: Classify | None) -> tuple[Objective, str]:
    """A classification whose labels are texts: numbered in sorted order over all sites."""
    for part in given:
        if part.y.dtype.kind != "U":
            raise UmbelError(f"The labels of all sites must be texts or whole numbers alike. Got texts at {texts[0].of}"
                             f" and {part.y.dtype} at {part.of} instead.")
    labels = tuple(np.unique(np.concatenate([part.y.reshape(-1) for part in texts])).tolist())
    if goal is not None and goal.classes != len(labels):
        raise UmbelError(f"The sites have {len(labels)} different labels: {', '.join(labels[:5])}"
                         f"{' ...' if len(labels) > 5 else ''}. Got {goal.classes} classes: give as many, or name them"
                         " all in Classify(labels=...).")
    named = replace(goal or Classify(len(labels)), labels=labels)
    return named, f"{len(labels)} classes, in the order {', '.join(labels)}"


def _checked(of: str, own: list[Part], objective: Objective, like: Like | None) -> list[Half]:
    halves: list[Half] = []
    for part in own:
        x = _inputs(part, like)
        like = like or Like(x.shape[1:], (kind_of(x),), "its training rows")
        halves.append((x, np.require(objective.check(part.y, part.of), requirements=["C", "W"])))
    _refuse_floats_of_255(of, [x for x, _ in halves])
    return halves


def _inputs(part: Part, like: Like | None) -> Array:
    """float32, uint8 or int64; writable, because torch warns of arrays that are not."""
    of, x, _ = part
    if x.dtype.kind not in "biufc":
        first = f", as in {x.reshape(-1)[0]!s}" if x.size else ""
        raise UmbelError(f"The inputs of {of} must be numbers. Got {x.dtype}{first}.")
    if x.dtype.kind != "f" and x.dtype not in (np.uint8, np.int64):
        raise UmbelError(f"The inputs of {of} must be floats, uint8 images or int64 tokens. Got {x.dtype}: say which is"
                         " meant by x.astype(np.float32) or x.astype(np.int64).")
    if x.ndim < 2 or 0 in x.shape[1:]:
        raise UmbelError(f"The inputs of {of} must be (rows, columns) or (rows, channels, height, width)."
                         f" Got the shape {x.shape} instead.")
    if like is not None:
        x = laid_out(x, like.shape)
        if x.shape[1:] != like.shape:
            raise UmbelError(f"The inputs of {of} must be {like.shape}, as {like.those}."
                             f" Got {part.x.shape[1:]} instead.")
        if kind_of(x) not in like.kinds:
            raise UmbelError(f"The inputs of {of} must be {' or '.join(WORDS[kind] for kind in like.kinds)}, as"
                             f" {like.those}. Got {x.dtype} instead.")
    if x.dtype == np.uint8 and x.ndim == 2:
        raise UmbelError(f"The inputs of {of} are uint8 in one line, and could be pixels or tokens: give float32 for"
                         " numbers, int64 for tokens.")
    if x.dtype == np.int64 and x.size and x.min() < 0:
        place = np.argwhere(x < 0)[0]
        raise UmbelError(f"The inputs of {of} are int64, which are tokens from 0. Got {x[tuple(place)]}"
                         f" in {_said(place)}: give float32 for numbers.")
    return np.require(_finite(of, x) if x.dtype.kind == "f" else x, requirements=["C", "W"])


def _finite(of: str, x: Array) -> Array:
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is refused below
        narrow = x.astype(np.float32, copy=False)
    if not np.isfinite(narrow).all():
        place = np.argwhere(~np.isfinite(narrow))[0]
        raise UmbelError(f"The inputs of {of} must be finite float32. Got {x[tuple(place)]} in {_said(place)}: fill it"
                         " in, or leave the row out.")
    return narrow


def _said(place: Array) -> str:
    """Where a number stands: row 3, column 5; in an image row 3, place (0, 2, 4)."""
    row, *rest = place.tolist()
    return f"row {row}, column {rest[0]}" if len(rest) == 1 else f"row {row}, place ({', '.join(map(str, rest))})"


def _refuse_floats_of_255(of: str, inputs: list[Array]) -> None:
    """Images of floats that look like bytes: a network that is to learn from them gets steps 255 times too large."""
    full = [x for x in inputs if x.size]
    if full[0].dtype == np.float32 and full[0].ndim == 4:
        least, most = min(x.min() for x in full), max(x.max() for x in full)
        if least >= 0 and most > 1:
            raise UmbelError(f"The images of {of} must be uint8, or floats in [0, 1] or around 0. Got floats from"
                             f" {least:g} to {most:g}: give uint8, or divide by 255.")


def laid_out(x: Array, shape: tuple[int, ...]) -> Array:
    """Images given as (rows, height, width, channels), or without the axis of a single channel, with channels first."""
    if len(shape) != 3 or x.shape[1:] == shape:
        return x
    channels, height, width = shape
    if x.shape[1:] == (height, width, channels):
        return x.transpose(0, 3, 1, 2)
    return x[:, None] if channels == 1 and x.shape[1:] == (height, width) else x
