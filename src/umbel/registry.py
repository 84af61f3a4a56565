"""Names whose objects are imported when they are first asked for: a list of names costs nothing, whatever they bring.

A place is written "module:name" and means what `from module import name` would bring. Beside umbel's own names there
are those that installed packages add (entry points), and things in a person's own file, "mine.py:thing".
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from umbel import plugins
from umbel.errors import UmbelError, nearest, unknown

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

Thing = TypeVar("Thing")


def imported(place: str) -> Any:
    """What is at "module:name"; the name may be a submodule's."""
    module, _, name = place.partition(":")
    return getattr(__import__(module, fromlist=[name]), name)


class Registry(MutableMapping[str, Thing]):
    """Things by the name that a person types, each itself or the place it is imported from when first asked for.

    To list the names, or to ask whether there is one, imports nothing. `kind` is what the things are called in
    sentences; `extras` says for some names which extra of umbel they need. The list has umbel's own names; those of the
    entry points of `group` are in `added`, and are known and found as well, as are things in a person's `files`, where
    these may be named. `admit` is the place of a function (name, thing) that takes such a thing, or refuses it.
    """

    def __init__(self, kind: str, entries: Mapping[str, Thing | str],
                 extras: Mapping[str, str] = MappingProxyType({}), group: str = "", admit: str = "",
                 files: bool = False) -> None:
        self.kind = kind
        self._entries = dict(entries)
        self._extras = extras
        self._group = group
        self._admit = admit
        self._files = files
        self._brought: dict[str, Thing] = {}

    def find(self, name: str) -> Thing:
        """The thing of this name; for a name that is not there, the sentence that says so."""
        if name not in self:
            raise unknown(self.kind, name, [*self, *self.added])
        return self[name]

    @cached_property
    def added(self) -> "Mapping[str, EntryPoint]":
        """What installed packages add, by name: not imported yet. umbel's own names are not theirs to take."""
        if not self._group:
            return {}
        from importlib.metadata import entry_points  # takes its time

        return {each.name: each for each in entry_points(group=self._group) if each.name not in self._entries}

    def __getitem__(self, name: str) -> Thing:
        if name not in self._entries and name in self:
            if name not in self._brought:
                self._brought[name] = self._from_outside(name)
            return self._brought[name]
        entry = self._entries[name]
        if isinstance(entry, str):
            entry = self._entries[name] = self._imported(name, entry)
        return entry

    def _from_outside(self, name: str) -> Thing:
        """A person's own thing, or an installed package's."""
        if plugins.parted(name):
            brought = plugins.bring(name)
        else:
            entry = self.added[name]
            try:
                brought = entry.load()
            except Exception as error:  # whatever a package does when it is imported
                raise UmbelError(f"The {self.kind} '{name}' of {distribution(entry)} ({entry.value}) cannot be"
                                 f" imported: {type(error).__name__}: {error}.") from error
        thing: Thing = imported(self._admit)(name, brought) if self._admit else brought
        return thing

    def _imported(self, name: str, place: str) -> Thing:
        try:
            thing: Thing = imported(place)
        except ModuleNotFoundError as error:
            if name not in self._extras:
                raise
            advice = f"pip install 'umbel[{self._extras[name]}]'"
            raise UmbelError(f"The {self.kind} '{name}' needs {error.name}: {advice}.") from error
        return thing

    def __setitem__(self, name: str, thing: Thing | str) -> None:
        self._entries[name] = thing

    def __delitem__(self, name: str) -> None:
        del self._entries[name]

    def __contains__(self, name: object) -> bool:  # a mapping's own would import
        return name in self._entries or (self._files and plugins.parted(name) is not None) or name in self.added

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"<Registry of {len(self)}, by {self.kind}: {', '.join(self)}>"


def distribution(entry: "EntryPoint") -> str:
    """The installed package that an entry point is of, with its version."""
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else "an installed package"


def attributes(package: str, places: Iterable[str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package (PEP 562) whose names are imported from these places."""
    by_name = {place.partition(":")[2]: place for place in places}

    def getattribute(name: str) -> Any:
        if name not in by_name:
            hint = nearest(name, by_name)
            raise AttributeError(f"module '{package}' has no attribute '{name}'{hint and '. ' + hint}")
        thing = imported(by_name[name])
        setattr(sys.modules[package], name, thing)  # the next time Python finds it by itself
        return thing

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *by_name})

    return getattribute, names
