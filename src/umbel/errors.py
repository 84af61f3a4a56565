"""What umbel says when it cannot go on: one sentence, for a person."""

from collections.abc import Iterable
from difflib import get_close_matches


class UmbelError(ValueError):
    """A wrong input. The message names the thing, the rule and the value; the CLI prints it and exits with 2."""


class UmbelWarning(UserWarning):
    """Something that a person should know, though the work goes on: one sentence."""


def nearest(name: str, known: Iterable[str]) -> str:
    """The question after the near spelling, or nothing where no known name is near."""
    near = get_close_matches(name, sorted(known), n=1)
    return f"Did you mean '{near[0]}'?" if near else ""


def unknown(kind: str, name: str, known: Iterable[str]) -> UmbelError:
    """The sentence for a name that is not in a registry, with the near spelling."""
    names = sorted(known)
    return UmbelError(f"There is no {kind} '{name}'. {nearest(name, names) or 'Known: ' + ', '.join(names) + '.'}")
