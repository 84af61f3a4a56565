"""What each client trains on and is tested on, as rows of (training set, then test set)."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.random import Generator

from umbel.data.clients import IntArray
from umbel.data.partition import ClientRows, by_label, joined, whole_parts
from umbel.seeds import generator

TESTED = 0.3  # holdout: the share of a client's rows that it is tested on
Tester = Callable[[IntArray, IntArray, ClientRows, Generator], tuple[ClientRows, ClientRows]]
# y, y_test, the rows that clients hold, rng -> train, test


def label_full(y: IntArray, y_test: IntArray, holds: ClientRows, rng: Generator) -> tuple[ClientRows, ClientRows]:
    """Tested on all test-set rows of every label it trains on; clients share them (PACFL, FLAG)."""
    return holds, [len(y) + np.flatnonzero(np.isin(y_test, np.unique(y[rows]))) for rows in holds]


def matched(y: IntArray, y_test: IntArray, holds: ClientRows, rng: Generator) -> tuple[ClientRows, ClientRows]:
    """Tested on test-set rows in the proportions of its training rows, as many as no two clients have to share.

    Only a client that would get none borrows one row that another client may have.
    """
    queues = by_label(y_test, rng)
    known = np.array(list(queues))
    have = np.array([[np.count_nonzero(y[rows] == c) for c in known] for rows in holds])
    left = np.array([len(rows) for rows in queues.values()])
    wanted = have.sum(axis=0)
    rate = float(np.min(left[wanted > 0] / wanted[wanted > 0], initial=np.inf))  # test rows per training row
    test = []
    for counts in have:
        if not counts.any():
            test.append(joined([]))
            continue
        take = np.minimum(whole_parts(rate * counts, max(1, round(rate * int(counts.sum()))), rng), left)
        rows = joined(queues[c][end - size : end] for c, end, size in zip(known, left, take, strict=True))
        left = left - take
        test.append(np.sort(len(y) + (rows if len(rows) else queues[known[counts.argmax()]][:1])))
    return holds, test


def holdout(y: IntArray, y_test: IntArray, holds: ClientRows, rng: Generator) -> tuple[ClientRows, ClientRows]:
    """Tested on 30 % of its own rows, stratified by label; a label keeps a training row as long as there is another.

    The test set stays unused. Where clients share rows, one may train on what another is tested on.
    """
    train, test = [], []
    for rows in holds:
        known, counts = np.unique(y[rows], return_counts=True)
        take = np.minimum(whole_parts(TESTED * counts, max(1, round(TESTED * len(rows))), rng), counts - 1)
        if not take.any() and len(rows) > 1:  # one row of each label: one of them must go
            take[rng.integers(len(known))] = 1
        out = joined(rng.permutation(rows[y[rows] == c])[:size] for c, size in zip(known, take, strict=True))
        train.append(np.setdiff1d(rows, out))
        test.append(np.sort(out))
    return train, test


def redrawn(kinds: IntArray, holds: ClientRows, names: Sequence[str], seed: int, share: float,
            in_one_piece: bool) -> tuple[ClientRows, ClientRows]:
    """Of all that a client holds, in order, other rows for each seed to be tested on; by the client's name.

    They are a share of its rows of each kind; where rows follow one another, as lines of a text do, one piece of it.
    """
    train, test = [], []
    for rows, name in zip(holds, names, strict=True):
        rng, mask = generator(seed, "redrawn", name), np.zeros(len(rows), dtype=bool)
        if in_one_piece:
            size = min(len(rows) - 1, max(1, round(share * len(rows))))
            first = rng.integers(len(rows) - size + 1)
            mask[first : first + size] = True
        else:
            for kind in np.unique(kinds[rows]):
                same = rng.permutation(np.flatnonzero(kinds[rows] == kind))
                mask[same[: round(share * len(same))]] = True
        train.append(rows[~mask])
        test.append(rows[mask])
    return train, test


OWN = "own"  # natural alone: the test rows that a client has in life
TEST_MODES: dict[str, Tester] = {"label_full": label_full, "matched": matched, "holdout": holdout}
