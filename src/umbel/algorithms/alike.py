"""What methods share that ask whether clients differ: parts of their rows, what is kept of a test, and newcomers.

The test is one for all methods, whatever they group by (clustering/tested.py); a method brings the tree that is walked.
Evidence: `parts`, what each client of `parts_of` said of its rows; `part_sizes`, the rows of a part of each kind;
`test`, what was found; `together`, how steady the clusters are.
"""

from dataclasses import dataclass, replace
from math import isfinite

import numpy as np
import torch
from torch import Tensor

from umbel import tree
from umbel.algorithms.base import Local, State, keeps_norms, travelling
from umbel.clustering.bootstraps import STEADY, together
from umbel.clustering.branches import Branch
from umbel.clustering.energy import energy, mixtures
from umbel.clustering.exchangeable import LEVEL, TESTS, Test, absent, looks, shares
from umbel.clustering.grouping import joined
from umbel.clustering.newcomers import settle, told
from umbel.clustering.parts import Parts, distinct_counts, embedded_parts, raw_parts, read, sizes
from umbel.clustering.said import contrast, p_said, words
from umbel.clustering.signatures import SIGNATURES, signature_for
from umbel.clustering.tested import Cut, nearest, tested, verdict
from umbel.federation.door import Cohort, Federation
from umbel.federation.phases import CLUSTERING, SIGNATURE
from umbel.fields import choice
from umbel.nets.model import Model
from umbel.seeds import generator
from umbel.tree import Params, Tree

SIGNATURE_ROUND = 0  # whenever it is asked for, a signature is drawn from the same stream


@dataclass(frozen=True, kw_only=True)
class PartsSettings:
    """What every method can be told that asks for parts of rows."""

    signature: str = choice("auto", "auto", *SIGNATURES)  # what a row is as a vector; auto: by the kind of data

    def __post_init__(self) -> None:
        """`Algorithm` checks."""
        super().__post_init__()  # type: ignore[misc]


PARTS_TELL = ("signatures", "counts")  # see Algorithm.tells: parts of rows, and how many rows there are of each kind


def deal_for(net: Model) -> str:
    """How rows are dealt into parts: those of series and texts follow in time, and lie in blocks."""
    return "blocks" if net.tokens or len(net.shape) == 2 else "random"


def described(fed: Federation, ids: Tensor, local: Local, anchor: Params, signature: str = "auto",
              sized: Tensor | None = None) -> tuple[Tensor, Tree, Tensor]:
    """Ask for parts of rows: who answered; what, with a leading client axis; the rows of a part of each kind.

    `sized` are those of clients who were asked before; else they follow from these clients' counts.
    """
    kind, deal = signature_for(fed.net, signature), deal_for(fed.net)
    counted = fed.map(distinct_counts, Cohort(ids, SIGNATURE_ROUND, SIGNATURE))
    counts = counted.answers["counts"].cpu()
    sized = sizes(counts, deal) if sized is None else sized
    cohort, rows = Cohort(counted.ids, SIGNATURE_ROUND, SIGNATURE), tuple(sized.tolist())
    if kind == "embedding":
        own = ("with_norms",) if keeps_norms(fed.net, local) else ()
        heard = fed.map(embedded_parts, cohort, shared={"model": travelling(fed.net, local, anchor)}, become=own,
                        sizes=rows, deal=deal)
    else:
        heard = fed.map(raw_parts, cohort, sizes=rows, deal=deal, signature=kind)
    part = heard.answers["part"]
    answers = {"vector": part.values.cpu(), "length": part.length, "kind": heard.answers["part_kind"].values.cpu(),
               "counts": counts[torch.isin(counted.ids, heard.ids)]}
    return heard.ids, answers, sized


def cut_by_tests(parts: Parts, start: Branch | list[Branch], seed: int) -> Cut:
    """Clusters of described clients, along a method's tree."""
    return tested(parts, start, generator(seed, "tests"))


def of_all(answers: Tree, seed: int) -> Tree:
    """`test` of described clients whom nobody has parted yet."""
    said = verdict(read(answers), generator(seed, "tests"))
    numbers = {**said._asdict(), "by_shares": said.differ and TESTS * min(said.looks, said.absent) > LEVEL}
    return {"test": {name: torch.tensor(float(value), dtype=torch.float64) for name, value in numbers.items()}}


def nearer(evidence: Tree, ids: Tensor, side: Tensor) -> Tensor:
    """Two halves of some clients, (m,), after those changed sides whose rows lie nearer to the other half's.

    Where that would leave one half empty, or some client never said anything of its rows, the halves stay as they are.
    """
    places = {client: place for place, client in enumerate(evidence["parts_of"].tolist())}
    at = [places.get(client, -1) for client in ids.tolist()]
    if min(at) < 0:
        return side
    parts = read(evidence["parts"]).of(np.array(at))
    apart = mixtures(parts.counts) if evidence["test"]["by_shares"] else energy(parts)
    moved = torch.from_numpy(nearest(side.long().numpy(), apart)).to(side.dtype)
    return moved if len(set(moved.tolist())) > 1 else side


def telling(evidence: Tree) -> tuple[Test, ...]:
    """The tests by which some of the clients can be told apart, once `test` has said what all of them differ in."""
    p = {test.__name__: float(evidence["test"][test.__name__]) for test in (absent, looks, shares)}
    if TESTS * min(p.values()) > LEVEL:
        return ()
    return (shares,) if evidence["test"]["by_shares"] else (absent, looks)


def found(cut: Cut, answers: Tree, seed: int) -> Tree:
    """What is kept of a cut: `test` and, where there are clusters and not too many clients to try again, `together`."""
    parts = read(answers)
    numbers = {**cut.root._asdict(), "by_shares": cut.by_shares, "contrast": contrast(parts, cut.labels)}
    evidence: Tree = {"test": {name: torch.tensor(float(value), dtype=torch.float64)
                               for name, value in numbers.items() if isfinite(value)}}
    if cut.labels.any() and len(cut.labels) <= STEADY:
        steady = together(parts, cut.labels, generator(seed, "bootstrap"), cut.by_shares)
        evidence["together"] = torch.from_numpy(steady)
    return evidence


def kept(cut: Cut, who: Tensor, answers: Tree, sized: Tensor, seed: int) -> Tree:
    """All evidence of a cut of these clients."""
    return found(cut, answers, seed) | {"who": who, "parts": answers, "parts_of": who, "part_sizes": sized}


def joining(known: Tree, labels: Tensor, newcomers: Tree, clusters: int, names: list[str], seed: int,
            by_shares: bool) -> Tensor:
    """The clusters of newcomers, (m,): the nearest that tests cannot tell them from, or new ones behind the others."""
    rng = generator(seed, "settle", *names)
    return torch.from_numpy(settle(read(known), labels.numpy(), read(newcomers), clusters, rng, by_shares))


def known_too(fed: Federation, evidence: Tree, newcomers: Cohort, local: Local, signature: str) -> tuple[Tensor, Tree]:
    """Newcomers say the same of their rows as the others did: who answered, and the evidence with what they said.

    Who comes again is known by its new rows alone.
    """
    anchor = tree.to(evidence["anchor"], fed.device)
    who, answers, _ = described(fed, newcomers.ids, local, anchor, signature, evidence["part_sizes"])
    stay = ~torch.isin(evidence["parts_of"], who)
    more = {"parts": joined(tree.take(evidence["parts"], stay), answers),
            "parts_of": torch.cat([evidence["parts_of"][stay], who])}
    if "together" in evidence:  # of rows that a client has no more
        again = torch.isin(evidence["who"][: len(evidence["together"])], who)
        more["together"] = evidence["together"].masked_fill(again | again[:, None], 0.0)
    return who, evidence | more


def join(fed: Federation, state: State, newcomers: Cohort, local: Local, signature: str = "auto") -> State:
    """Newcomers join the nearest cluster that tests cannot tell them from, or found one."""
    who, evidence = known_too(fed, state.evidence, newcomers, local, signature)
    labels, clusters, old = state.labels.clone(), tree.count(state.models), len(evidence["parts_of"]) - len(who)
    theirs, answers = (tree.take(evidence["parts"], some) for some in (slice(0, old), slice(old, None)))
    with fed.timing(CLUSTERING):
        labels[who] = joining(theirs, labels[evidence["parts_of"][:old]], answers, clusters,
                              [fed.names[i] for i in who.tolist()], fed.seed, bool(evidence["test"]["by_shares"]))
    state = state.grow(evidence["anchor"], max(0, int(labels.max()) + 1 - clusters))
    return replace(state, labels=labels, evidence=evidence)


def why(state: State, trial: str = "") -> str:
    """The reason of a cut by tests, in a sentence without its full stop; `trial` is what a trial of clusters said."""
    evidence = state.evidence
    placed = state.labels[evidence["parts_of"]]
    test = {name: float(value) for name, value in evidence["test"].items()}
    return words(test, len(evidence["who"]), len(set(placed[placed >= 0].tolist())), trial)


def why_there(state: State, place: int, seed: int) -> str:
    """Why a newcomer is where it is, in a sentence; empty where its place does not rest on tests of its rows."""
    if "parts" not in state.evidence or not bool((state.evidence["parts_of"] == place).any()):
        return ""
    parts, by_shares = read(state.evidence["parts"]), bool(state.evidence["test"]["by_shares"])
    labels, rng = state.labels[state.evidence["parts_of"]].numpy(), generator(seed, "told", place)
    mine = state.evidence["parts_of"].numpy() == place
    one, own = parts.of(np.flatnonzero(mine)), int(state.labels[place])
    found = {label: told(parts.of(np.flatnonzero((labels == label) & ~mine)), one, rng, by_shares)
             for label in sorted({*labels[~mine].tolist()} - {-1})}
    if own not in found:
        p = max((each.p for each in found.values()), default=1.0)
        return f"Its rows differ from those of every cluster ({p_said(p)})."
    if found[own].differ:
        return f"Its rows differ from those of this cluster too ({p_said(found[own].p)}), which is the nearest."
    if not found[own].enough:
        return "It has too few rows to be told from this cluster, which is the nearest."
    return f"Its rows cannot be told from those of this cluster ({p_said(found[own].p)})."
