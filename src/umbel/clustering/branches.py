"""Trees of clients that can be walked from the root: a dendrogram, or halves that are made when they are asked for."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform

from umbel.clustering.parts import Floats, Ints


class Branch(NamedTuple):
    """Some clients, and how a method would part them in two."""

    members: Ints  # places
    halves: Callable[[], "tuple[Branch, Branch]"] | None  # None: a single client, or nothing to part them by


def tree_of(apart: Floats) -> Floats:
    """The average-linkage tree of distances that may be a little below 0."""
    if len(apart) < 2:
        return np.zeros((0, 4))
    raised = apart - min(0.0, float(apart.min()))
    np.fill_diagonal(raised, 0.0)
    links: Floats = hierarchy.linkage(squareform(raised, checks=False), "average")
    return links


def by_links(links: Floats, members: Ints) -> Branch:
    """A dendrogram as scipy writes it, of clients at these places."""
    if len(members) < 2:
        return Branch(members, None)

    def branch(node: hierarchy.ClusterNode) -> Branch:
        inside = members[np.sort(np.array(node.pre_order()))]
        left, right = node.left, node.right
        return Branch(inside, None if left is None or right is None else lambda: (branch(left), branch(right)))

    return branch(hierarchy.to_tree(links))


def by_distance(apart: Floats, members: Ints | None = None) -> Branch:
    """The average-linkage tree of some clients, of all by default."""
    members = np.arange(len(apart)) if members is None else members
    return by_links(tree_of(apart[np.ix_(members, members)]), members)


def by_halving(halve: Callable[[Ints], tuple[Ints, Ints]], members: Ints) -> Branch:
    """Clients that are parted in two, and each half again; where one half is empty, all stay together."""
    if len(members) < 2:
        return Branch(members, None)

    def halves() -> tuple[Branch, Branch]:
        left, right = halve(members)
        return by_halving(halve, left), by_halving(halve, right)

    return Branch(members, halves)
