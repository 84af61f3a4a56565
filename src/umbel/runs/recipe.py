"""Settings as people write them, and recipes as files."""

import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

from umbel.algorithms.base import Algorithm, Local
from umbel.algorithms.server import ServerSettings
from umbel.errors import UmbelError, unknown
from umbel.fields import alternatives
from umbel.files import read_bytes

LARGEST_RECIPE = 2**15  # bytes; a key of 500,000 dots keeps Python's reader of TOML busy for an hour


def typed(kind: type[Algorithm], given: Mapping[str, Any]) -> dict[str, Any]:
    """A method's settings with their types: its own fields, its server's, its training's (`lr`, `epochs` ...)."""
    hints = {**get_type_hints(Local), **get_type_hints(kind)}
    for name in given:
        if name not in settable(kind):
            raise unknown(f"setting of {kind.name} named", name, settable(kind))
    return {name: parsed(value, alternatives(hints[name])) for name, value in given.items()}


def settings_of(algorithm: Algorithm) -> dict[str, Any]:
    """All settings of a method, flat, as `typed` takes them."""
    of_training = {each.name for each in fields(Local)}
    return {name: getattr(algorithm.local if name in of_training else algorithm, name)
            for name in settable(type(algorithm))}


def settable(kind: type[Algorithm]) -> list[str]:
    """Names a person may set: a method's own fields, then those of its server and of its local training."""
    return own_settings(kind) + common_settings()


def own_settings(kind: type[Algorithm]) -> list[str]:
    """Names of a method's own fields; `local` is flattened, and the truth is the scenario's alone."""
    hidden = {"local", "truth", "truth_changes", *common_settings()}
    return [each.name for each in fields(kind) if each.name not in hidden]


def common_settings() -> list[str]:
    """Names that all methods have: of the server, and of local training."""
    return [each.name for part in (ServerSettings, Local) for each in fields(part)]


def parsed(value: Any, allowed: tuple[Any, ...]) -> Any:
    """A text from the command line as what the field wants; what is not one stays, and the field's check says so."""
    if not isinstance(value, str):
        return value
    if type(None) in allowed and value.lower() == "none":
        return None
    if bool in allowed and value.lower() in ("true", "false"):
        return value.lower() == "true"
    for number in (int, float):
        if number in allowed:
            with suppress(ValueError):
                return number(value)
    return value


def to_toml(table: Mapping[str, Any]) -> str:
    """A table with one level of sub-tables. What is None is left out above, and the text none below."""
    import tomli_w  # only where a run folder is written

    plain = {name: value for name, value in table.items() if value is not None and not isinstance(value, Mapping)}
    inner = {name: {key: "none" if value is None else value for key, value in part.items()}
             for name, part in table.items() if isinstance(part, Mapping)}
    return tomli_w.dumps(plain | inner)


def read_toml(path: Path, follow: bool = False) -> dict[str, Any]:
    """A recipe from a file; a link to one is followed where a person named it."""
    content = read_bytes(path, LARGEST_RECIPE, follow)
    try:
        return tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:  # not TOML, not UTF-8, nested without end, thousands of digits
        raise UmbelError(f"The recipe {path} must be TOML. It is not: {error}.") from error


def plain(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe as it is read back from its file."""
    return tomllib.loads(to_toml(recipe))


def flat(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """All choices of a recipe by name, those of the method among them."""
    values = dict(recipe)
    settings = values.pop("settings", {})
    return values | (dict(settings) if isinstance(settings, Mapping) else {"settings": settings})


def differing(own: Mapping[str, Any], other: Mapping[str, Any], but: str = "") -> str:
    """The first choice in which two recipes differ, or nothing; one name may."""
    mine, theirs = flat(own), flat(other)
    return next((name for name in [*mine, *theirs] if name != but and mine.get(name) != theirs.get(name)), "")
