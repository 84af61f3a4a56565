"""Who holds which rows: labels in, the rows of each client out.

A partition reads the labels `y` of a training set. No row goes to two clients, except under `quantity_4` and `mix_4`,
which say so. Some sizes are lowered where the set is too small; `Drawn.facts` says which were used.
"""

from collections.abc import Callable, Iterable, Mapping
from math import comb
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from umbel.data.clients import IntArray
from umbel.errors import UmbelError

FloatArray = NDArray[np.floating[Any]]
ClientRows = list[IntArray]  # row numbers, one array a client
KEPT = ((1, 2), (3, 4), (5, 6), (7, 8))  # label-4: what each block of clients keeps whole
CUT = 0.1  # label-4: what is left of the other labels
FACTORS = (0.1, 0.2, 0.6, 1.0)  # quantity-4, client by client
MIX = {"cifar10": 32, "svhn": 26, "fashion-mnist": 28, "usps": 14}  # mix-4: clients of each set, of 100
OFFSETS = {"usps": 0, "cifar10": 10, "svhn": 20, "fashion-mnist": 30}  # mix-4: the first label of each set
REDRAWS = 1000  # dirichlet: draws before it gives up; a few seconds


class Drawn(NamedTuple):
    """What a partition drew."""

    rows: ClientRows  # of the training set, ascending
    truth: IntArray  # (clients,) true group, numbered by its first client
    groups: int  # how many true groups; 0 = there are none, and truth is all 0
    facts: Mapping[str, Any]  # sizes that were used: they may be lower than those asked for


Partitioner = Callable[..., Drawn]  # (y, clients, rng, **parameters)


def iid(y: IntArray, clients: int, rng: Generator) -> Drawn:
    """All rows, shuffled, in equal shares (one more or less)."""
    if clients > len(y):
        raise UmbelError(f"Every client needs a row: at most {len(y)} clients on this data set. Got {clients} instead.")
    return _drawn(np.array_split(rng.permutation(len(y)), clients))


def every_label(y: IntArray, clients: int, rng: Generator, *, per_label: int = 100) -> Drawn:
    """Client k takes the shuffled rows [k m, (k+1) m) of every label (m = `per_label`): the taxonomy's basis."""
    m = _room(y, clients, per_label)
    queues = by_label(y, rng)
    return _drawn([joined(rows[k * m : (k + 1) * m] for rows in queues.values()) for k in range(clients)], per_label=m)


def label_4(y: IntArray, clients: int, rng: Generator, *, per_label: int = 100) -> Drawn:
    """As `every_label`, then block b of four keeps labels 2b+1 and 2b+2 whole and a tenth of all others."""
    m = _room(y, clients, per_label)
    cut = max(1, round(CUT * m))
    truth = blocks(clients, len(KEPT))
    queues = by_label(y, rng).items()
    rows = [
        joined(rows[k * m : k * m + (m if label in KEPT[truth[k]] else cut)] for label, rows in queues)
        for k in range(clients)
    ]
    return _drawn(rows, truth, per_label=m, cut_to=cut)


def quantity_4(y: IntArray, clients: int, rng: Generator, *, per_label: int = 100) -> Drawn:
    """Clients 0, 1, 2, 3, 4 ... hold 10, 20, 60, 100, 10 ... % of `per_label` rows of every label.

    Each of the four classes reads the shuffled rows from the start: classes overlap, clients of one class do not.
    """
    m = _room(y, -(-clients // len(FACTORS)), per_label)
    sizes = [max(1, round(factor * m)) for factor in FACTORS]
    if len(set(sizes)) < len(FACTORS):
        raise UmbelError(
            f"quantity-4 needs four different sizes: at least 8 rows per label and client. Got {m} with {clients} "
            "clients instead; ask for fewer clients."
        )
    queues = by_label(y, rng).values()
    rows = []
    for k in range(clients):
        turn, kind = divmod(k, len(FACTORS))
        rows.append(joined(rows_c[turn * sizes[kind] : (turn + 1) * sizes[kind]] for rows_c in queues))
    return _drawn(rows, np.arange(clients) % len(FACTORS), per_label=m, sizes=sizes)


def label_skew(y: IntArray, clients: int, rng: Generator, *, labels: float = 0.2) -> Drawn:
    """Each client holds a share of the labels, label i mod K surely; a label's rows go to its owners in equal parts.

    NIID-Bench's `#label` partition. Clients with the same labels are one true group.
    """
    each, known = _share(y, labels), np.unique(y)  # labels of a client, all labels
    owned = []
    for i in range(clients):
        sure = i % len(known)
        others = rng.choice(np.delete(np.arange(len(known)), sure), each - 1, replace=False)
        owned.append(tuple(sorted(int(known[c]) for c in (sure, *others))))
    parts: list[list[IntArray]] = [[] for _ in range(clients)]
    for label, rows in by_label(y, rng).items():
        owners = [i for i in range(clients) if label in owned[i]]
        _enough("label-skew", label, len(rows), len(owners), len(owners))
        for i, part in zip(owners, np.array_split(rows, len(owners)) if owners else [], strict=True):
            parts[i].append(part)
    return _drawn([joined(part) for part in parts], first_seen(owned), labels_held=each)


def flag(
    y: IntArray, clients: int, rng: Generator, *,
    labels: float = 0.2, alpha: float = 1.0, groups: int = 10, min_per_label: int = 5,
) -> Drawn:  # fmt: skip
    """Groups share a label set (rho = `labels`); a label's rows are divided over all its owners by Dirichlet(alpha').

    Every owner first gets `min_per_label` rows, or fewer (but one), so that half of a label is left to the draw.
    """
    if groups > clients:
        raise UmbelError(
            f"flag needs a client in every group. Got groups={groups} and {clients} clients instead; lower 'groups'."
        )
    each, known = _share(y, labels), np.unique(y)  # labels of a client, all labels
    sets = _label_sets(known, each, groups, rng)
    truth = blocks(clients, groups)
    queues = by_label(y, rng)
    owners = {c: np.flatnonzero([c in sets[group] for group in truth]) for c in queues}
    owners = {c: who for c, who in owners.items() if len(who)}
    floor = min(min_per_label, *(max(1, len(queues[c]) // (2 * len(who))) for c, who in owners.items()))
    parts: list[list[IntArray]] = [[] for _ in range(clients)]
    for c, who in owners.items():
        _enough("flag", c, len(queues[c]), len(who) * floor, len(who))
        sure, rest = np.split(queues[c], [floor * len(who)])
        ends = np.cumsum(rng.dirichlet(np.full(len(who), alpha)))[:-1]
        shares = np.split(rest, (ends * len(rest)).astype(np.int64))
        for turn, i in enumerate(who):
            parts[i] += [sure[turn * floor : (turn + 1) * floor], shares[turn]]
    return _drawn([joined(part) for part in parts], truth, labels_held=each, min_per_label=floor)


def dirichlet(y: IntArray, clients: int, rng: Generator, *, alpha: float = 0.1, min_size: int = 10) -> Drawn:
    """Each label is divided over the clients by Dirichlet(beta = `alpha`); a client that has n / N rows gets no more.

    NIID-Bench's balanced partition, drawn again until the smallest client has `min_size` rows. No true groups.
    """
    if clients * min_size > len(y):
        raise UmbelError(
            f"dirichlet needs {clients * min_size} rows for {clients} clients with min_size={min_size}. "
            f"Got {len(y)} instead; ask for fewer clients or a smaller min_size."
        )
    for _ in range(REDRAWS):
        parts = _dirichlet_once(y, clients, rng, alpha)
        if parts and min(len(rows) for rows in parts) >= min_size:
            return _drawn(parts, groups=0, min_size=min_size)
    raise UmbelError(
        f"dirichlet made {REDRAWS} draws, none of which gives each of {clients} clients {min_size} rows at "
        f"alpha={alpha:g}. Ask for a larger alpha, fewer clients or a smaller min_size."
    )


def _dirichlet_once(y: IntArray, clients: int, rng: Generator, alpha: float) -> ClientRows:
    """One draw; empty when every client had its n / N rows before the last label was dealt out."""
    parts: list[list[IntArray]] = [[] for _ in range(clients)]
    sizes = np.zeros(clients, dtype=np.int64)
    for rows in by_label(y, rng).values():
        share = rng.dirichlet(np.full(clients, alpha)) * (sizes < len(y) / clients)
        if not share.sum() > 0:
            return []
        ends = (np.cumsum(share / share.sum())[:-1] * len(rows)).astype(np.int64)
        for i, part in enumerate(np.split(rows, ends)):
            parts[i].append(part)
            sizes[i] += len(part)
    return [joined(part) for part in parts]


def dirichlet_clients(y: IntArray, clients: int, rng: Generator, *, alpha: float = 0.25) -> Drawn:
    """Each client draws its own label mix q ~ Dir(alpha * prior) and as many rows as all others by it (Hsu et al.).

    The prior is the set's label shares. A label that is used up is left out of q. There are no true groups.
    """
    size = len(y) // clients
    if size < 1:
        raise UmbelError(f"Every client needs a row: at most {len(y)} clients on this data set. Got {clients} instead.")
    queues = list(by_label(y, rng).values())
    left = np.array([len(rows) for rows in queues])
    prior = left / len(y)
    drawn = []
    for _ in range(clients):
        mix = rng.dirichlet(alpha * prior)  # q
        taken = np.zeros_like(left)
        while taken.sum() < size:
            open_mix = mix * (taken < left)
            chance = open_mix if open_mix.sum() > 0 else (left - taken).astype(float)
            taken = np.minimum(taken + rng.multinomial(size - taken.sum(), chance / chance.sum()), left)
        drawn.append(joined(rows[have - take : have] for rows, have, take in zip(queues, left, taken, strict=True)))
        left = left - taken
    return _drawn(drawn, groups=0, per_client=size)


def combinations(
    y: IntArray, clients: int, rng: Generator, *, count: int, labels: int, per_label: int = 50
) -> Drawn:
    """Each client picks one of `count` random label sets, and takes `per_label` fresh rows of each of its labels."""
    sets = _label_sets(np.unique(y), labels, count, rng)
    choice = rng.integers(count, size=clients)
    queues = by_label(y, rng)
    asked = {c: sum(c in sets[i] for i in choice) for c in queues}
    fits = min(len(queues[c]) // asked[c] for c in queues if asked[c])
    for c, rows in queues.items():
        if asked[c] * per_label > len(rows):
            step = f"set per_label={fits}" if fits else "ask for fewer clients"
            raise UmbelError(
                f"{asked[c]} clients hold label {c} and ask for {per_label} of its rows each: {asked[c] * per_label} "
                f"rows, and there are {len(rows)}. With this seed, {step}."
            )
    used = dict.fromkeys(queues, 0)
    drawn = []
    for i in choice:
        drawn.append(joined(queues[c][used[c] : used[c] + per_label] for c in sets[i]))
        used.update({c: used[c] + per_label for c in sets[i]})
    return _drawn(drawn, first_seen(choice.tolist()), per_label=per_label)


def mix_4(y: IntArray, clients: int, rng: Generator, *, per_label: int = 50) -> Drawn:
    """Blocks of clients, one block a data set, which is known by its ten labels; `per_label` rows of each label.

    Drawn without repetition inside a client and independently between clients, so clients of a set overlap.
    """
    if clients < len(MIX):
        raise UmbelError(f"mix-4 needs a client for each of its {len(MIX)} data sets. Got {clients} instead.")
    quota = np.array(list(MIX.values())) / sum(MIX.values()) * clients - 1
    counts = 1 + whole_parts(np.maximum(quota, 0), clients - len(MIX))  # at least one client a set
    truth = np.repeat(np.arange(len(MIX)), counts)
    queues = by_label(y, rng)
    m = min(per_label, *(len(rows) for rows in queues.values()))
    first = [OFFSETS[name] for name in MIX]
    mine = [[c for c in queues if first[kind] <= c < first[kind] + 10] for kind in truth]
    return _drawn([joined(rng.permutation(queues[c])[:m] for c in own) for own in mine], truth, per_label=m)


def blocks(size: int, count: int) -> IntArray:
    """0, 0, ... 1, 1, ...: `size` places in `count` contiguous blocks, as equal as can be."""
    return np.sort(np.arange(size, dtype=np.int64) % count)


def first_seen(keys: Iterable[Any]) -> IntArray:
    """Equal keys get equal numbers, in the order of their first appearance."""
    numbers: dict[Any, int] = {}
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)


def _drawn(rows: Iterable[IntArray], truth: IntArray | None = None, groups: int | None = None, **facts: Any) -> Drawn:
    ascending = [np.sort(part).astype(np.int64) for part in rows]
    truth = np.zeros(len(ascending), dtype=np.int64) if truth is None else truth.astype(np.int64)
    return Drawn(ascending, truth, len(np.unique(truth)) if groups is None else groups, facts)


def by_label(y: IntArray, rng: Generator) -> dict[int, IntArray]:
    """Each label's rows, shuffled."""
    return {int(label): rng.permutation(np.flatnonzero(y == label)) for label in np.unique(y)}


def joined(parts: Iterable[IntArray]) -> IntArray:
    """One array of several, or of none."""
    return np.concatenate([np.empty(0, dtype=np.int64), *parts])


def _room(y: IntArray, readers: int, asked: int) -> int:
    """Rows of each label for each of so many readers: what was asked, or what the rarest label can give."""
    rarest = int(np.unique(y, return_counts=True)[1].min())
    room = min(asked, rarest // readers)
    if room < 2:
        raise UmbelError(
            f"A client needs at least 2 rows of every label. Got per_label={asked} and {rarest} rows of the rarest "
            f"label for {readers} clients instead."
        )
    return room


def _share(y: IntArray, labels: float) -> int:
    """How many labels a share of all labels is."""
    known = len(np.unique(y))
    if not 1 <= (each := round(labels * known)) <= known:
        raise UmbelError(f"The share 'labels' must mean at least one of {known} labels. Got {labels:g} instead.")
    return each


def _enough(scenario: str, label: int, rows: int, needed: int, owners: int) -> None:
    if rows < needed:
        raise UmbelError(
            f"{scenario} needs {needed} rows of label {label} for the {owners} clients that hold it. "
            f"Got {rows} instead; ask for fewer clients."
        )


def _label_sets(known: IntArray, each: int, count: int, rng: Generator) -> list[tuple[int, ...]]:
    """`count` different sets of `each` labels."""
    if count > (most := comb(len(known), each)):
        raise UmbelError(f"There are {most} sets of {each} out of {len(known)} labels. Got {count} groups instead.")
    sets: dict[tuple[int, ...], None] = {}
    while len(sets) < count:
        sets[tuple(sorted(int(c) for c in rng.choice(known, each, replace=False)))] = None
    return list(sets)


def whole_parts(quota: FloatArray, total: int, rng: Generator | None = None) -> IntArray:
    """Whole numbers near `quota` that sum to `total`: floors, then the largest remainders.

    Equal remainders are served in order, or at random with an `rng`.
    """
    whole: IntArray = np.floor(quota + 1e-9).astype(np.int64)
    ties = rng.random(len(quota)) if rng else np.arange(len(quota))
    order = np.lexsort((ties, np.round(whole - quota, 9)))
    whole[order[: max(0, total - int(whole.sum()))]] += 1
    return whole
