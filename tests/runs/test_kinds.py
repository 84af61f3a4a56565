"""Kinds of values: what fits, and the sentence about what does not."""

from typing import Any

import pytest

from umbel.errors import UmbelError
from umbel.runs.kinds import (
    NUMBER,
    Anything,
    ByName,
    Kind,
    ListOf,
    Number,
    OneOf,
    Table,
    Text,
    Whole,
    hold,
    if_there,
    or_null,
)

GOOD: list[tuple[Kind, list[Any]]] = [
    (Number(0, 1), [0, 0.5, 1]),
    (Whole(-1, 3), [-1, 3]),
    (Text(3), ["", "abc", "ä\n"]),
    (OneOf((True, False)), [True, False]),
    (or_null(Whole()), [None, 0]),
    (ListOf(Whole(), 1, 2), [[1], [1, 2]]),
    (ByName(NUMBER), [{}, {"a": 1.5}]),
    (Table({"a": Whole(), "b": if_there(Whole()), "c": if_there(Table({"d": Whole()}), empty=True)}),
     [{"a": 1}, {"a": 1, "b": 2}, {"a": 1, "c": {}}, {"a": 1, "c": {"d": 1}}, {"a": 1, "new": {"x": [None, True]}}]),
    (Anything(2), [None, [[1]], {"a": {"b": "c"}}]),
]


@pytest.mark.parametrize(("kind", "values"), GOOD, ids=lambda each: type(each).__name__)
def test_what_fits_is_handed_on(kind: Kind, values: list[Any]) -> None:
    """The very value comes back."""
    assert all(hold(value, kind, "f") is value for value in values)


WRONG: list[tuple[Kind, Any, str]] = [
    (Number(0, 1), 1.5, "What stands in f must be a number from 0 to 1. Got 1.5 instead."),
    (Number(0, 1), True, "What stands in f must be a number from 0 to 1. Got true instead."),
    (NUMBER, float("nan"), "Got NaN instead."),
    (NUMBER, float("inf"), "Got Infinity instead."),
    (NUMBER, 10**400, "Got a larger number instead."),
    (Whole(0, 2000), 1.0, "must be a whole number from 0 to 2,000. Got 1.0 instead."),
    (Whole(2, 2), 3, "must be 2. Got 3 instead."),
    (Text(3), "long", 'must be a text of at most 3 letters, without control characters. Got "long" instead.'),
    (Text(), "\x1b[2J", r'Got "\u001b[2J" instead.'),
    (Text(), "\ud800", r'Got "\ud800" instead.'),
    (OneOf(("last", "best")), "first", 'must be "last" or "best". Got "first" instead.'),
    (OneOf((True, False)), 1, "must be true or false. Got 1 instead."),
    (or_null(Whole(0, 1)), "x", "must be a whole number from 0 to 1, or null."),
    (ListOf(NUMBER, 2, 2), [1], "must be a list of 2. Got a list of 1 instead."),
    (ListOf(ListOf(NUMBER)), [[], [1, "x"]], "The '[1][1]' in f must be a number"),
    (ByName(NUMBER), {"a": {}}, "The 'a' in f must be a number from -1e+305 to 1e+305. Got a table instead."),
    (ByName(NUMBER, OneOf(("up",))), {"on": 1}, 'must be a table in which every name is "up". Got "on" instead.'),
    (Table({"a": Table({"b": ListOf(Whole(0, 1))})}), {"a": {"b": [0, 2]}},
     "The 'a.b[1]' in f must be a whole number from 0 to 1. Got 2 instead."),
    (Table({"a": NUMBER}), {}, "The 'a' in f must be a number from -1e+305 to 1e+305. Got nothing instead."),
    (Table({"a": NUMBER, "b": if_there(NUMBER)}), [], "must be a table with a. Got a list of 0 instead."),
    (Table({}), {"new": float("nan")}, "The 'new' in f must be plain JSON"),
    (if_there(Table({"a": NUMBER}), empty=True), {"b": 1}, "The 'a' in f must be"),
    (Anything(2), [[[1]]], "The '[0][0]' in f must be plain JSON"),
    (Anything(2), {"\x00": 1}, "must be a table in which every name is a text"),
    (NUMBER, "x" * 100, 'Got "' + "x" * 56 + "... instead."),
    (ByName(NUMBER), {"n" * 100: "x"}, f"The '{'n' * 57}...' in f must be"),
]


@pytest.mark.parametrize(("kind", "value", "sentence"), WRONG, ids=range(len(WRONG)))
def test_what_does_not_fit_is_one_sentence(kind: Kind, value: Any, sentence: str) -> None:
    """It names the file, the key path, the rule and what was got, and is no longer than a few lines."""
    with pytest.raises(UmbelError) as error:
        hold(value, kind, "f")
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 300


def test_depth_is_bounded_before_python_is() -> None:
    """What is nested a thousand times is refused as a value, not met as a RecursionError."""
    deep: Any = []
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(UmbelError, match="must be plain JSON"):
        hold({"new": deep}, Table({}), "f")
