"""Texts as small as can be: lines that count, up or down."""

import numpy as np

VOCABULARY, PLACES = 5, 6


def sentences(steps: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """A line for each step, of tokens that follow each other by it; the last target of every third is padding."""
    starts = rng.integers(0, VOCABULARY, (len(steps), 1))
    line = (starts + np.reshape(steps, (-1, 1)) * np.arange(PLACES + 1)) % VOCABULARY
    x, y = line[:, :-1].copy(), line[:, 1:].copy()
    y[::3, -1] = -1
    return x, y
