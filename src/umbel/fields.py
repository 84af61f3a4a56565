"""Checked fields of dataclasses: a range or a choice stands beside each default, and `check` holds values against it.

`__post_init__` of every options class calls `check`, so that Python and the command line refuse alike.
"""

import math
import operator
import re
from collections.abc import Iterable
from dataclasses import field, fields
from functools import cache
from types import UnionType
from typing import Any, get_args, get_type_hints

from umbel.errors import UmbelError, unknown

_SIGNS = {"ge": ("at least", operator.ge), "gt": ("greater than", operator.gt),
          "le": ("at most", operator.le), "lt": ("less than", operator.lt)}
LIMITS = {int: 2**31 - 1, float: 1e30}  # of a number whose field says nothing else: above is a slip, and would overflow
LONGEST = 200  # bits of a whole number that a sentence shows
NAME_LETTERS = 1000  # of a name of a person's own: of a client, a column, a class
UNFIT = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")  # what moves a terminal, or is no letter
SEEDS = 1000  # that are compared at once, at most
_WORDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


def number(default: Any, **rule: float) -> Any:
    """A number with its allowed range: `number(0.01, gt=0)`; rules are ge, gt, le, lt; else `LIMITS` hold."""
    return field(default=default, metadata=rule)


def choice(default: str | None, *allowed: str) -> Any:
    """One of a few words."""
    return field(default=default, metadata={"one_of": allowed})


def refuse_unknown(kind: Any, given: Iterable[str], owner: str) -> None:
    """The sentence for a misspelt setting, where Python itself would speak of an unexpected keyword argument."""
    known = [each.name for each in fields(kind)]
    for name in given:
        if name not in known:
            raise unknown(f"setting of {owner} named", name, known)


def check(thing: Any, owner: str) -> None:
    """Hold every field of a dataclass against its type and the rule in its metadata; `owner` is named in the sentence.

    A whole number where a number is wanted becomes one (lr=1 is lr=1.0), so that the same setting reads alike.
    """
    kind: Any = type(thing)
    types = _types(kind)
    for each in fields(thing):
        value = getattr(thing, each.name)
        if getattr(value, "shape", None) == () and hasattr(value, "item"):  # one number out of an array
            value = value.item()
            object.__setattr__(thing, each.name, value)
        allowed = alternatives(types.get(each.name))
        if type(value) is int and float in allowed and int not in allowed:
            value = _real(value)
            object.__setattr__(thing, each.name, value)
        _check_type(owner, each.name, value, allowed)
        if value is not None:
            _check_rule(owner, each.name, value, dict(each.metadata))


def bounded(value: Any, name: str, owner: str, **rule: float) -> int:
    """A whole number that is no field, held against its rule: as `check` does it, in the same sentence."""
    _check_type(owner, name, value, (int,))
    _check_rule(owner, name, value, rule)
    return int(value)


def bounded_real(value: Any, name: str, owner: str, **rule: float) -> float:
    """The same for any number."""
    value = _real(value) if type(value) is int else value
    _check_type(owner, name, value, (float,))
    _check_rule(owner, name, value, rule)
    return float(value)


def _real(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


@cache
def _types(kind: Any) -> dict[str, Any]:
    try:
        return get_type_hints(kind)
    except NameError:  # a user's class may name types that only a type checker sees: rules are checked all the same
        return {}


def alternatives(kind: Any) -> tuple[Any, ...]:
    """The types that an annotation allows: `int | None` -> (int, NoneType)."""
    return get_args(kind) if isinstance(kind, UnionType) else (kind,)


def in_words(allowed: tuple[Any, ...]) -> str:
    """Types as a person says them: "a whole number or a text"."""
    return " or ".join(_WORDS[one] for one in allowed if one in _WORDS)


def _check_type(owner: str, name: str, value: Any, allowed: tuple[Any, ...]) -> None:
    plain = tuple(one for one in allowed if one in _WORDS or one is type(None))
    if not any(one in _WORDS for one in plain):
        return  # a table, a list or another options class has its own checks
    if type(value) not in plain:
        raise UmbelError(f"The '{name}' of {owner} must be {in_words(plain)}. Got {shown(value)} instead.")
    if isinstance(value, float) and not math.isfinite(value):
        raise UmbelError(f"The '{name}' of {owner} must be a finite number. Got {value} instead.")


def _check_rule(owner: str, name: str, value: Any, rule: dict[str, Any]) -> None:
    if "one_of" in rule and value not in rule["one_of"]:
        words = " or ".join(f"'{word}'" for word in rule["one_of"])
        raise UmbelError(f"The '{name}' of {owner} must be {words}. Got '{value}' instead.")
    limits = {sign: limit for sign, limit in rule.items() if sign in _SIGNS}
    if most := LIMITS.get(type(value)):
        limits = ({} if limits.keys() & {"ge", "gt"} else {"ge": -most}) | limits
        limits |= {} if limits.keys() & {"le", "lt"} else {"le": most}
    if any(not _SIGNS[sign][1](value, limit) for sign, limit in limits.items()):
        words = " and ".join(f"{_SIGNS[sign][0]} {limit}" for sign, limit in limits.items())
        raise UmbelError(f"The '{name}' of {owner} must be {words}. Got {shown(value)} instead.")


def refuse_names(names: Iterable[str], what: str) -> None:
    """Raise where a name of a person's own could stand in no file and on no screen; `what` the names are, in plural."""
    for name in map(str, names):
        if len(name) > NAME_LETTERS or UNFIT.search(name):
            raise UmbelError(f"{what} must be texts of at most {NAME_LETTERS:,} letters, without control characters."
                             f" Got {shown(UNFIT.sub('?', name))}.")


def shown(value: Any) -> str:
    """A value in a sentence: as a recipe has it, and no longer than a line."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and value.bit_length() > LONGEST:
        return f"a number of {value.bit_length():,} bits"  # Python itself refuses to write thousands of digits
    text = f'"{value}"' if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
