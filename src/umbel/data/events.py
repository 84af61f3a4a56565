"""Clients that come, go and change while a run goes on: `20@50` is twenty clients at round 50."""

import re

import numpy as np

from umbel.data import shift
from umbel.data.clients import NEVER, IntArray
from umbel.data.plans import Event, Plan
from umbel.errors import UmbelError


def moves(flag: str, text: str) -> list[tuple[int, int]]:
    """`20@50,5@80` as [(20, 50), (5, 80)]: how many clients, at which round."""
    pairs = []
    for piece in filter(None, text.split(",")):
        if not re.fullmatch("[1-9][0-9]{0,8}@[1-9][0-9]{0,8}", piece.strip()):
            raise UmbelError(f"A {flag} is written COUNT@ROUND, both at least 1, as in 20@50. Got '{piece}' instead.")
        count, _, round = piece.partition("@")
        pairs.append((int(count), int(round)))
    return pairs


def joins(text: str, n: int) -> IntArray | None:
    """The round in which each of n clients appears: the last ones named come from the end of the list."""
    rounds = np.zeros(n, dtype=np.int64)
    last = n
    for count, round in reversed(moves("join", text)):
        rounds[max(0, last - count) : max(0, last)] = round
        last -= count
    return rounds if text else None


def leaves(text: str, n: int) -> IntArray | None:
    """The round from which each of n clients is gone: the first ones named come from the start of the list."""
    rounds = np.full(n, NEVER)
    first = 0
    for count, round in moves("leave", text):
        rounds[first : first + count] = round
        first += count
    return rounds if text else None


def shifts(text: str) -> list[tuple[int, int, str]]:
    """`2@3:rotate:90,1@5:erode+swap:1-7` as [(2, 3, "rotate:90"), (1, 5, "erode+swap:1-7")]."""
    found = []
    for piece in filter(None, text.split(",")):
        read = re.fullmatch("([1-9][0-9]{0,8})@([1-9][0-9]{0,8}):(.+)", piece.strip())
        if read is None:
            raise UmbelError("A change is written COUNT@ROUND:SHIFT, both numbers at least 1, as in 2@3:rotate:90."
                             f" Got '{piece}' instead.")
        image, label = np.zeros((1, 1, 1, 1), dtype=np.uint8), np.zeros(1, dtype=np.int64)
        shift.apply(read[3], image, label, label)  # refuses what is no shift
        found.append((int(read[1]), int(read[2]), read[3]))
    return found


def changes(text: str, plan: Plan, y: IntArray, order: IntArray) -> tuple[Event, ...]:
    """The events of a text: from its round on, the first clients have a shift on top of what they had.

    `y` are the labels of the plan's rows. First are those whom `order` names first: places after a shuffle count.
    A client whose partition's group and shift are those of a true group is in that group; else it founds one.
    """
    asked = sorted(shifts(text), key=lambda change: change[1])
    if asked and any(event.kind == "change" for event in plan.events):
        raise UmbelError("A partition that has changes of its own takes no others: leave out the option 'change'.")
    grouped = bool(plan.facts.get("groups", 1))
    if asked and grouped and plan.dealt is None:
        raise UmbelError("This partition is of an older umbel and does not say what its clients' groups are without"
                         " shifts, which a change must know: draw it anew.")
    own = list(plan.shift)
    groups: dict[tuple[int, str], int] = {}
    if asked and grouped and plan.dealt is not None:
        for dealt, kind, group in zip(plan.dealt.tolist(), own, plan.truth.tolist(), strict=True):
            groups.setdefault((dealt, shift.grouped(kind)), group)
    made = []
    for count, round, more in asked:
        for i in order[:count].tolist():
            own[i] = shift.on_top(own[i], more, y[np.concatenate([plan.train[i], plan.test[i]])])
            group = None
            if grouped and plan.dealt is not None:
                group = groups.setdefault((int(plan.dealt[i]), shift.grouped(own[i])), max(groups.values()) + 1)
            made.append(Event("change", round, i, own[i], group=group))
    return tuple(made)
