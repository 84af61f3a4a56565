"""Clients that come and go while a run goes on: `20@50` is twenty clients at round 50."""

import re

import numpy as np

from umbel.data.clients import IntArray
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
    rounds = np.full(n, np.iinfo(np.int64).max)
    first = 0
    for count, round in moves("leave", text):
        rounds[first : first + count] = round
        first += count
    return rounds if text else None
