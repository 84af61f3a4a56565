"""What every message cost: bytes of numbers by phase, round, client, direction and kind.

A kind is the name under which a thing travels (model, size, basis ...). Billed are the bytes of tensors; names,
options and a transport's framing are not. Shared inputs are billed to every recipient, and a client that was asked but
stayed silent is billed downwards only.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from umbel.federation.phases import EVALUATE

Totals: TypeAlias = dict[str, dict[str, dict[str, int]]]  # phase -> direction -> kind -> bytes


class Line(NamedTuple):
    """One kind of thing that was sent to or by some clients in one call."""

    phase: str
    round: int
    direction: str  # down = to the clients, up = from them
    kind: str
    clients: tuple[str, ...]
    bytes: tuple[int, ...]  # of each client


class Ledger:
    """Lines since the last `drain`."""

    def __init__(self) -> None:
        self.lines: list[Line] = []

    def bill(self, line: Line) -> None:
        """Write down one line, unless it is of no bytes."""
        if any(line.bytes):
            self.lines.append(line)

    def drain(self) -> list[Line]:
        """Hand over the lines and start an empty page."""
        lines, self.lines = self.lines, []
        return lines


def totals(lines: Iterable[Line]) -> Totals:
    """Sum over rounds and clients."""
    return merge({line.phase: {line.direction: {line.kind: sum(line.bytes)}}} for line in lines)


def merge(pages: Iterable[Totals]) -> Totals:
    """Add totals together."""
    sums: Totals = defaultdict(lambda: defaultdict(lambda: defaultdict(int)))
    for page in pages:
        for phase, ways in page.items():
            for way, kinds in ways.items():
                for kind, amount in kinds.items():
                    sums[phase][way][kind] += amount
    return {phase: {way: dict(kinds) for way, kinds in ways.items()} for phase, ways in sums.items()}


def summary(sums: Totals) -> dict[str, object]:
    """What a result says: down, up and by kind; evaluation stands apart, since real federations may do without."""
    down_up = dict.fromkeys(("down", "up"), 0)
    by_kind: dict[str, int] = defaultdict(int)
    evaluate = 0
    for phase, ways in sums.items():
        for way, kinds in ways.items():
            for kind, amount in kinds.items():
                if phase == EVALUATE:
                    evaluate += amount
                else:
                    down_up[way] += amount
                    by_kind[kind] += amount
    return {**down_up, "by_kind": dict(sorted(by_kind.items())), "evaluate": evaluate}
