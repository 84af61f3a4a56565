"""Kinds of values in a file of JSON, as data: each says in words what it wants, and finds what does not fit.

A description is made of these (`runs/schema.py`), and whoever writes, reads or documents the file shares it.
"""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from umbel.errors import UmbelError
from umbel.fields import NAME_LETTERS, UNFIT

FAR = 1e305  # numbers are nearer to 0: sums of many are finite, a hundredfold too
MOST = 2**53  # of whole numbers: every program that reads JSON has them exactly
LETTERS = 100_000  # of a text
DEEPEST = 12  # tables in tables, of what nobody here knows
SHOWN = 60  # letters of a wrong value in a sentence


class Wrong(NamedTuple):
    """Something that does not fit: where, what it must be, and what it is."""

    place: str  # "score.cluster_model.mean"; empty for the whole
    rule: str
    got: str

    def inside(self, name: str) -> "Wrong":
        """The same, seen from the table around it."""
        return self._replace(place=f"{name}{'.' if self.place and self.place[0] != '[' else ''}{self.place}")


class Kind(ABC):
    """What a value may be."""

    @property
    @abstractmethod
    def words(self) -> str:
        """What it must be, behind "must be"."""

    @abstractmethod
    def fits(self, value: Any) -> bool:
        """Whether the value itself is of this kind, whatever is in it."""

    def inside(self, value: Any) -> Iterator[tuple[str, "Kind", Any]]:
        """What is in a value that fits: names, their kinds, values."""
        return iter(())

    def wrong(self, value: Any) -> Wrong | None:
        """The first thing that does not fit."""
        if not self.fits(value):
            return Wrong("", self.words, _said(value))
        found = ((name, kind.wrong(part)) for name, kind, part in self.inside(value))
        return next((wrong.inside(name) for name, wrong in found if wrong is not None), None)


@dataclass(frozen=True)
class Number(Kind):
    """A finite number."""

    least: float = -FAR
    most: float = FAR

    @property
    def words(self) -> str:
        """Its range."""
        return f"a number from {self.least:g} to {self.most:g}"

    def fits(self, value: Any) -> bool:
        """No truth value, though Python counts with these."""
        return type(value) in (int, float) and self.least <= value <= self.most


@dataclass(frozen=True)
class Whole(Kind):
    """A whole number."""

    least: int = 0
    most: int = MOST

    @property
    def words(self) -> str:
        """Its range."""
        return str(self.least) if self.least == self.most else f"a whole number from {self.least:,} to {self.most:,}"

    def fits(self, value: Any) -> bool:
        """1.0 is none."""
        return type(value) is int and self.least <= value <= self.most


@dataclass(frozen=True)
class Text(Kind):
    """A text of bounded length, without signs that move a terminal."""

    letters: int = LETTERS
    pattern: str = ""  # of the whole of it
    means: str = ""  # the pattern in words

    @property
    def words(self) -> str:
        """Its length, or its form."""
        return self.means or f"a text of at most {self.letters:,} letters, without control characters"

    def fits(self, value: Any) -> bool:
        """Lone halves of letters, which JSON can write, cannot be written again."""
        return (isinstance(value, str) and len(value) <= self.letters and not UNFIT.search(value)
                and (not self.pattern or re.fullmatch(self.pattern, value) is not None))


@dataclass(frozen=True)
class OneOf(Kind):
    """One of a few values."""

    values: tuple[str | bool, ...]

    @property
    def words(self) -> str:
        """All of them."""
        return " or ".join(json.dumps(value) for value in self.values)

    def fits(self, value: Any) -> bool:
        """1 is not true."""
        return any(value is each if isinstance(each, bool) else value == each for each in self.values)


@dataclass(frozen=True)
class Either(Kind):
    """A value of a kind, or null; or an empty table; or, in a table, nothing at all."""

    kind: Kind
    null: bool = False
    empty: bool = False
    absent: bool = False

    @property
    def words(self) -> str:
        """Those of the kind."""
        return f"{self.kind.words}{', or null' if self.null else ''}{', or an empty one' if self.empty else ''}"

    def fits(self, value: Any) -> bool:
        """The kind's own answer, but for these."""
        return self._exempt(value) or self.kind.fits(value)

    def wrong(self, value: Any) -> Wrong | None:
        """What the kind says of it."""
        return super().wrong(value) if self._exempt(value) or not self.fits(value) else self.kind.wrong(value)

    def _exempt(self, value: Any) -> bool:
        return (self.null and value is None) or (self.empty and value == {})


def or_null(kind: Kind) -> Either:
    """What does not exist is null."""
    return Either(kind, null=True)


def if_there(kind: Kind, empty: bool = False) -> Either:
    """A key that not every file has; `empty`: or it has an empty table."""
    return Either(kind, empty=empty, absent=True)


@dataclass(frozen=True)
class ListOf(Kind):
    """A list of things of one kind."""

    kind: Kind
    least: int = 0
    most: int = MOST

    @property
    def words(self) -> str:
        """How long it may be."""
        if self.least == self.most:
            return f"a list of {self.least}"
        return f"a list of at least {self.least}" if self.least else "a list"

    def fits(self, value: Any) -> bool:
        """By its length."""
        return isinstance(value, list) and self.least <= len(value) <= self.most

    def inside(self, value: Any) -> Iterator[tuple[str, Kind, Any]]:
        """Its members, by number."""
        return ((f"[{k}]", self.kind, part) for k, part in enumerate(value))


NAME = Text(NAME_LETTERS)


@dataclass(frozen=True)
class ByName(Kind):
    """A table of things of one kind, by names that are not known beforehand."""

    kind: Kind
    names: Kind = NAME

    @property
    def words(self) -> str:
        """What it is."""
        return "a table"

    def fits(self, value: Any) -> bool:
        """By what it is; `wrong` looks at names, and members have their own say."""
        return isinstance(value, dict)

    def wrong(self, value: Any) -> Wrong | None:
        """A name may be wrong as well."""
        bad = next((name for name in value if not self.names.fits(name)), None) if isinstance(value, dict) else None
        if bad is not None:
            return Wrong("", f"a table in which every name is {self.names.words}", _said(bad))
        return super().wrong(value)

    def inside(self, value: Any) -> Iterator[tuple[str, Kind, Any]]:
        """Its members."""
        return ((name, self.kind, part) for name, part in value.items())


@dataclass(frozen=True)
class Anything(Kind):
    """What umbel only hands on: numbers, texts, lists and tables, not too deep."""

    levels: int = DEEPEST

    @property
    def words(self) -> str:
        """What it may not be."""
        return "plain JSON: finite numbers, texts without control characters, and few lists in lists"

    def fits(self, value: Any) -> bool:
        """By what it is, and whether it is too deep."""
        if isinstance(value, dict | list):
            return self.levels > 0
        return value is None or isinstance(value, bool) or NUMBER.fits(value) or TEXT.fits(value)

    def wrong(self, value: Any) -> Wrong | None:
        """Whatever is in it is the same, one level less."""
        if not isinstance(value, dict | list) or not self.levels:
            return super().wrong(value)
        less = Anything(self.levels - 1)
        return (ByName(less, TEXT) if isinstance(value, dict) else ListOf(less)).wrong(value)


NUMBER, TEXT, FLAG = Number(), Text(), OneOf((True, False))


@dataclass(frozen=True)
class Table(Kind):
    """A table whose names are known. Others may stand beside them: a later version adds some."""

    names: Mapping[str, Kind]
    rest: Kind = field(default_factory=Anything)

    @property
    def words(self) -> str:
        """What must be in it."""
        needed = [name for name, kind in self.names.items() if not (isinstance(kind, Either) and kind.absent)]
        return f"a table with {', '.join(needed)}" if needed else "a table"

    def fits(self, value: Any) -> bool:
        """By what it is; what it lacks is found by `wrong`."""
        return isinstance(value, dict)

    def wrong(self, value: Any) -> Wrong | None:
        """What lacks comes first."""
        if isinstance(value, dict):
            for name, kind in self.names.items():
                if name not in value and not (isinstance(kind, Either) and kind.absent):
                    return Wrong(name, kind.words, "nothing")
        return super().wrong(value)

    def inside(self, value: Any) -> Iterator[tuple[str, Kind, Any]]:
        """All that is there."""
        return ((name, self.names.get(name, self.rest), part) for name, part in value.items())


def hold(value: Any, kind: Kind, file: object) -> Any:
    """The value again, where it is of this kind; else a sentence that names file, key, rule and value."""
    wrong = kind.wrong(value)
    if wrong is not None:
        what = f"The '{_cut(wrong.place)}' in {file}" if wrong.place else f"What stands in {file}"
        raise UmbelError(f"{what} must be {wrong.rule}. Got {wrong.got} instead.")
    return value


def _said(value: Any) -> str:
    """A wrong value in a sentence, however large or deep it is."""
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > MOST:
        return "a larger number"
    return _cut(json.dumps(value[:SHOWN] + "x" * (len(value) > SHOWN) if isinstance(value, str) else value))


def _cut(text: str) -> str:
    plain = UNFIT.sub("?", text)
    return plain if len(plain) <= SHOWN else f"{plain[: SHOWN - 3]}..."
