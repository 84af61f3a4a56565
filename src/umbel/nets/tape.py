"""A function of tensors as the plain list of torch operations that it runs: the same bits, without autograd or modules.

A training step of a small model on a CPU is half bookkeeping: modules, hooks, the graph that autograd builds and walks.
The operations below it depend on shapes alone, so they are written down once and then replayed.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from operator import getitem
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

Leaves: TypeAlias = Sequence[Tensor]
Replay: TypeAlias = Callable[..., list[Tensor]]
OFTEN = 20  # times that a kind of call is seen before it is recorded: recording takes as long as ten calls
UNTRACKED = {torch.ops.aten.detach.default, torch.ops.aten.alias.default}  # matter to autograd alone


class Tapes:
    """Recordings by kind of call. A kind must fix shapes, layouts and everything else that Python decides by."""

    def __init__(self) -> None:
        self.asked: Counter[Hashable] = Counter()
        self.trusted: dict[Hashable, Replay] = {}
        self.trial: dict[Hashable, Replay] = {}

    def run(self, kind: Hashable, inputs: Leaves, function: Callable[[], Leaves]) -> Leaves:
        """function(), which reads `inputs`. A recording is trusted once it gave the same bits for other inputs."""
        if kind in self.trusted:
            with torch.no_grad():
                return self.trusted[kind](*inputs)
        self.asked[kind] += 1
        if self.asked[kind] == OFTEN:
            results, tape = record(function, inputs)
            self.trial |= {kind: tape} if tape else {}
            return results
        results = function()
        if kind in self.trial:
            tape = self.trial.pop(kind)
            with torch.no_grad():
                replayed = tape(*inputs)
            if all(_same(a, b) for a, b in zip(results, replayed, strict=True)):
                self.trusted[kind] = tape
        return results


def record(function: Callable[[], Leaves], inputs: Leaves) -> tuple[Leaves, Replay | None]:
    """Run function(); its results, and a function of `inputs` that runs the same operations, where there is one."""
    notes = _Notes(inputs)
    with notes:
        results = function()
    return results, notes.replay(results)


class _Notes(TorchDispatchMode):
    """Writes down every operation that torch is about to compute, forwards and backwards."""

    def __init__(self, inputs: Leaves) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph = Graph()
        self.nodes: dict[Any, Node] = {}
        self.seen: list[Tensor] = []  # kept alive: their places in memory are their names
        self.constants: dict[str, Tensor] = {}
        self.looked_at = False  # whether Python read a number, and may have decided by it
        for k, leaf in enumerate(inputs):
            self._know(leaf, self.graph.placeholder(f"input_{k}"))

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # there is no compiler to keep away, and asking for it takes a second of imports

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = op(*args, **(kwargs or {}))
        if op in UNTRACKED:
            self._know(out, self._node(args[0]))
            return out
        by_name = [tree_map(lambda leaf: self._node(leaf) if isinstance(leaf, Tensor) else leaf, part)
                   for part in (tuple(args), kwargs or {})]
        node = self.graph.call_function(_binding(op), *by_name)
        if isinstance(out, Tensor):
            self._know(out, node)
        elif isinstance(out, tuple | list):
            for k, leaf in enumerate(out):
                if isinstance(leaf, Tensor):
                    self._know(leaf, self.graph.call_function(getitem, (node, k)))
        else:
            self.looked_at = True
        return out

    def replay(self, results: Leaves) -> Replay | None:
        """The operations that lead to `results`, as Python code."""
        if self.looked_at:
            return None
        self.graph.output([self._node(leaf) for leaf in results])
        self.graph.eliminate_dead_code()
        code: Replay = GraphModule(self.constants, self.graph).forward
        return code

    def _know(self, leaf: Tensor, node: Node) -> None:
        self.seen.append(leaf)
        self.nodes[_place(leaf)] = node

    def _node(self, leaf: Tensor) -> Node:
        if _place(leaf) not in self.nodes:  # made before: a constant
            name = f"constant_{len(self.constants)}"
            self.constants[name] = leaf.detach()
            self._know(leaf, self.graph.get_attr(name))
        return self.nodes[_place(leaf)]


def _place(leaf: Tensor) -> tuple[Any, ...]:
    """What identifies a tensor: autograd hands out other objects for the same memory."""
    return leaf.data_ptr(), leaf.dtype, leaf.shape, leaf.stride()


def _binding(op: Any) -> Any:
    """torch.relu for aten.relu.default: half the time of a call.

    Operations in place stay as they are: the graph knows by their schema that they are not dead code.
    """
    if op._overloadname != "default" or op._schema.is_mutable:
        return op
    return getattr(torch._C._VariableFunctions, op._schema.name.removeprefix("aten::"), op)


def _same(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)
