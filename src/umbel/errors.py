"""What umbel says when it cannot go on: one sentence, for a person."""

from collections.abc import Iterable
from difflib import get_close_matches

LONGEST = 2000  # signs of a sentence

class UmbelError(ValueError):
    """A wrong input. The message names the thing, the rule and the value; the CLI prints it and exits with 2."""

    def __init__(self, sentence: str) -> None:
        super().__init__(_legible(sentence))


def _legible(sentence: str) -> str:
    """One line that a terminal takes as it is, whatever was typed or read; of a long one the middle is left out."""
    short = sentence if len(sentence) <= LONGEST else f"{sentence[: LONGEST // 2]} ... {sentence[-LONGEST // 4 :]}"
    return "".join(sign if sign.isprintable() else "?" for sign in short)


class UmbelWarning(UserWarning):
    """Something that a person should know, though the work goes on: one sentence."""


def nearest(name: str, known: Iterable[str]) -> str:
    """The question after the near spelling, or nothing where no known name is near."""
    near = get_close_matches(name[:100], sorted(known), n=1)
    return f"Did you mean '{near[0]}'?" if near else ""


def unknown(kind: str, name: str, known: Iterable[str]) -> UmbelError:
    """The sentence for a name that is not in a registry, with the near spelling."""
    names = sorted(known)
    return UmbelError(f"There is no {kind} '{name}'. {nearest(name, names) or 'Known: ' + ', '.join(names) + '.'}")
