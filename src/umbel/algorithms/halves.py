"""What methods share that part clients in two, and each half again, as long as tests tell its members apart."""

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from umbel.algorithms import alike
from umbel.algorithms.base import Local, name_order
from umbel.clustering import flat
from umbel.clustering.branches import by_halving
from umbel.clustering.labels import canonical
from umbel.clustering.parts import Ints, read
from umbel.federation.door import Federation
from umbel.federation.phases import CLUSTERING
from umbel.tree import Params, Tree

View: TypeAlias = Callable[[Tensor], Tensor]  # rows of some clients -> the points that 2-means parts


def halved(fed: Federation, ids: Tensor, rows: Tensor, local: Local, anchor: Params, signature: str,
           view: View = lambda rows: rows) -> tuple[Tensor, Tree]:
    """Labels of all clients by bisecting 2-means of `rows` (m, d), one for each of `ids`, and tests; and the evidence.

    Who says nothing of its rows is not placed.
    """
    who, parts, sized = alike.described(fed, ids, local, anchor, signature)
    rows = rows[torch.isin(ids, who).to(rows.device)]
    by_name = name_order(fed, who)
    turn = by_name.argsort()

    def halve(members: Ints) -> tuple[Ints, Ints]:
        some = torch.from_numpy(members)
        some = some[turn[some].argsort()]  # 2-means begins alike wherever clients stand
        side = flat.kmeans(view(rows[some.to(rows.device)]), 2, fed.seed)[0].numpy()
        return some.numpy()[side == 0], some.numpy()[side == 1]

    with fed.timing(CLUSTERING):
        cut = alike.cut_by_tests(read(parts), by_halving(halve, by_name.numpy()), fed.seed)
        labels = torch.full((len(fed.names),), -1)
        labels[who] = canonical(torch.from_numpy(cut.labels), by_name)
        return labels, alike.kept(cut, who, parts, sized, fed.seed)
