"""What umbel says when it cannot go on: one sentence, for a person."""

from collections.abc import Iterable
from difflib import get_close_matches


class UmbelError(ValueError):
    """A wrong input. The message names the thing, the rule and the value; the CLI prints it and exits with 2."""


def unknown(kind: str, name: str, known: Iterable[str]) -> UmbelError:
    """The sentence for a name that is not in a registry, with the near spelling."""
    names = sorted(known)
    near = get_close_matches(name, names, n=1)
    hint = f"Did you mean '{near[0]}'?" if near else f"Known: {', '.join(names)}."
    return UmbelError(f"There is no {kind} '{name}'. {hint}")
