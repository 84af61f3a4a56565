"""Randomness as a function of names: (run seed, what for, round, client), never of the order of calls."""

from hashlib import blake2b

import numpy as np


def key(*parts: int | str) -> int:
    """63 bits that depend on every part, on every machine alike (Python's own `hash` is salted)."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def generator(*parts: int | str) -> np.random.Generator:
    """A fresh stream for one purpose: `generator(seed, "split", "c007")`."""
    return np.random.Generator(np.random.PCG64(key(*parts)))
