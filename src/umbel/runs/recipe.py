"""Names and values as people write them: checked against a dataclass's fields, to and from TOML."""

import math
import operator
import tomllib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_type_hints

from umbel.algorithms import Algorithm, Local
from umbel.errors import UmbelError, unknown

_SIGNS = {"ge": ("at least", operator.ge), "gt": ("greater than", operator.gt),
          "le": ("at most", operator.le), "lt": ("less than", operator.lt)}


def check(thing: Any, owner: str) -> None:
    """Hold every field of a dataclass against its type and the rule in its metadata."""
    types = get_type_hints(type(thing))
    for each in fields(thing):
        value = getattr(thing, each.name)
        _check_type(owner, each.name, value, types[each.name])
        if value is None:
            continue
        rules = dict(each.metadata)
        if "one_of" in rules and value not in rules["one_of"]:
            words = " or ".join(f"'{word}'" for word in rules["one_of"])
            raise UmbelError(f"The '{each.name}' of {owner} must be {words}. Got '{value}' instead.")
        limits = {sign: limit for sign, limit in rules.items() if sign in _SIGNS}
        if any(not _SIGNS[sign][1](value, limit) for sign, limit in limits.items()):
            words = " and ".join(f"{_SIGNS[sign][0]} {limit}" for sign, limit in limits.items())
            raise UmbelError(f"The '{each.name}' of {owner} must be {words}. Got {value} instead.")


def _check_type(owner: str, name: str, value: Any, kind: Any) -> None:
    allowed = get_args(kind) if isinstance(kind, UnionType) else (kind,)
    plain = tuple(one for one in allowed if isinstance(one, type) and one in (int, float, str, bool, type(None)))
    if not plain or (float in plain and type(value) is int):
        return  # a table or a list has its own checks
    if type(value) not in plain:
        words = " or ".join(_WORDS[one] for one in plain if one is not type(None))
        raise UmbelError(f"The '{name}' of {owner} must be {words}. Got {_value(value)} instead.")
    if isinstance(value, float) and not math.isfinite(value):
        raise UmbelError(f"The '{name}' of {owner} must be a finite number. Got {value} instead.")


_WORDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


def typed(kind: type[Algorithm], method: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """A method's settings with their types: its own fields, and those of its local training (`lr`, `epochs` ...)."""
    hints = {**get_type_hints(Local), **get_type_hints(kind)}
    for name in given:
        if name not in settable(kind):
            raise unknown(f"setting of {method} named", name, settable(kind))
    return {name: _parse(method, name, value, hints[name]) for name, value in given.items()}


def settings_of(algorithm: Algorithm) -> dict[str, Any]:
    """All settings of a method, flat, as `typed` takes them."""
    holders = [algorithm.local if hasattr(Local, name) else algorithm for name in settable(type(algorithm))]
    return {name: getattr(holder, name) for name, holder in zip(settable(type(algorithm)), holders, strict=True)}


def settable(kind: type[Algorithm]) -> list[str]:
    """Names a person may set: a method's own fields, then those of its local training."""
    hidden = ("local", "truth")  # local is flattened; truth comes from the scenario alone
    own = [each.name for each in fields(kind) if each.name not in hidden]  # type: ignore[arg-type]
    return own + [each.name for each in fields(Local)]


def _parse(method: str, name: str, value: Any, kind: Any) -> Any:
    """A text from the command line as what the field wants; other values as they are."""
    if not isinstance(value, str):
        return float(value) if kind is float and type(value) is int else value
    allowed = get_args(kind) if isinstance(kind, UnionType) else (kind,)
    if type(None) in allowed and value.lower() == "none":
        return None
    if bool in allowed and value.lower() in ("true", "false"):
        return value.lower() == "true"
    for number in (int, float):
        if number in allowed:
            try:
                return number(value)
            except ValueError:
                continue
    if str in allowed:
        return value
    words = " or ".join(_WORDS[one] for one in allowed if one in _WORDS)
    raise UmbelError(f"The '{name}' of {method} must be {words}. Got '{value}' instead.")


def to_toml(table: Mapping[str, Any]) -> str:
    """A flat table with one level of sub-tables. What is None is left out above, and the text none below."""
    lines = [
        f"{name} = {_value(value)}" for name, value in table.items()
        if value is not None and not isinstance(value, Mapping)
    ]
    for name, inner in table.items():
        if isinstance(inner, Mapping):
            told = {key: "none" if value is None else value for key, value in inner.items()}
            lines += ["", f"[{name}]", to_toml(told).rstrip("\n")]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        escaped = "".join(f"\\u{ord(sign):04x}" if sign in '"\\\x7f' or sign < " " else sign for sign in value)
        return f'"{escaped}"'
    if isinstance(value, list | tuple):
        return f"[{', '.join(_value(each) for each in value)}]"
    return str(value)


def read_toml(path: Path) -> dict[str, Any]:
    """A recipe from a file."""
    try:
        return tomllib.loads(path.read_bytes().decode())
    except OSError as error:
        raise UmbelError(f"The recipe {path} cannot be read: {error.strerror}.") from error
    except ValueError as error:  # not TOML, not UTF-8, or a number of thousands of digits
        raise UmbelError(f"The recipe {path} must be TOML. It is not: {error}.") from error
