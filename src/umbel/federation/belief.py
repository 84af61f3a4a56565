"""What of an answer can be believed: names, shapes and types as promised, finite numbers, and ranges.

An answer is believed whole or not at all. A range is a number, another leaf of the same answer (of `size` rows no more
are right), or what the server knows of the client: how many rows it has told, how many steps it was asked for.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from umbel import tree
from umbel.federation.tasks import Leaf, Of, UpTo
from umbel.tree import Tree

Known: TypeAlias = Mapping[str, Tensor]  # what limits are called -> (n,) one for each client
Rule: TypeAlias = tuple[str, str, Callable[[Tensor], Tensor]]  # name of a leaf, why it is not believed, what must hold


def misfit(send: Any, expected: Any, path: str = "answer") -> str | None:
    """Why a stacked answer is not what the task promised, or None."""
    if isinstance(expected, dict):
        if not isinstance(send, dict) or set(send) != set(expected):
            return f"{path} has other names than promised"
        if fault := next((fault for name in expected if (fault := misfit(send[name], expected[name], name))), None):
            return fault
        lengths = {name: send[name].shape[1] for name, leaf in expected.items() if is_ragged(leaf)}
        return f"{path} has ragged parts of different lengths {lengths}" if len(set(lengths.values())) > 1 else None
    leaf: Leaf = expected
    shape = tuple(send.shape[1:])
    fits = len(shape) == len(leaf.shape) and all(
        got <= want.most if isinstance(want, UpTo) else got == want
        for got, want in zip(shape, leaf.shape, strict=True)
    )
    if not fits or send.dtype != leaf.dtype:
        return f"{path} has shape {shape} and type {send.dtype}, promised were {leaf.shape} and {leaf.dtype}"
    return None


def is_ragged(leaf: Any) -> bool:
    """Whether its first axis differs between clients."""
    return isinstance(leaf, Leaf) and any(isinstance(axis, UpTo) for axis in leaf.shape)


def doubts(send: Tree, expected: Tree, known: Known) -> dict[int, str]:
    """By row, why a stacked answer that fits cannot be believed; nothing where all can."""
    leaves = tree.named(send)
    rules = _rules(leaves, tree.named(expected), known)
    sound = [leaf.sum().isfinite() for leaf in leaves.values() if leaf.is_floating_point()]  # NaN outlasts a sum
    if all_true([*sound, *(fits(leaves[name]).all() for name, _, fits in rules if fits is not torch.isfinite)]):
        return {}
    reasons: dict[int, str] = {}
    for name, reason, fits in rules:
        fine = fits(leaves[name])
        wrong = ~fine.reshape(len(fine), fine[0].numel()).all(1)
        reasons = dict.fromkeys(wrong.nonzero().flatten().tolist(), reason) | reasons  # the first one counts
    return reasons


def _rules(leaves: Mapping[str, Tensor], promised: Mapping[str, Any], known: Known) -> list[Rule]:
    rules: list[Rule] = [(name, "not finite", torch.isfinite) for name, leaf in leaves.items()
                         if leaf.is_floating_point()]
    for name, leaf in promised.items():
        if leaf.least is not None:
            rules.append((name, f"{name} is below {leaf.least}", partial(torch.ge, other=leaf.least)))
        if isinstance(leaf.most, Of):
            if (limit := _limit(leaf.most, leaves, known)) is not None:
                rules.append((name, f"{name} is above {_said(leaf.most)}", partial(_within, limit=limit)))
        elif leaf.most is not None:
            rules.append((name, f"{name} is above {leaf.most}", partial(torch.le, other=leaf.most)))
        if leaf.total is not None and (limit := _limit(leaf.total, leaves, known)) is not None:
            rules.append((name, f"{name} adds up to more than {_said(leaf.total)}", partial(_adds_up, limit=limit)))
        if leaf.agrees is not None:
            rules.append((name, f"{name} contradicts itself", leaf.agrees))
    return rules


def _limit(of: Of, leaves: Mapping[str, Tensor], known: Known) -> Tensor | None:
    """(n,) the limit of each client; None where nobody knows."""
    values = leaves.get(of.name, known.get(of.name))
    return None if values is None else values.double() * of.times


def _said(of: Of) -> str:
    return of.name if of.times == 1 else f"{of.times} times {of.name}"


def _within(leaf: Tensor, limit: Tensor) -> Tensor:
    return leaf.double() <= limit.to(leaf.device).view(-1, *[1] * (leaf.dim() - 1))


def _adds_up(leaf: Tensor, limit: Tensor) -> Tensor:
    return _within(leaf.double().sum(-1), limit)  # whole numbers as they are could run over


def all_true(flags: list[Tensor]) -> bool:
    """Of single flags: one wait for each device, not one for each flag."""
    devices = {flag.device for flag in flags}
    return all(bool(torch.stack([flag for flag in flags if flag.device == device]).all()) for device in devices)
