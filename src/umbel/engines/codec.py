"""A line of JSON and a tree of tensors through a pipe between two processes of one machine."""

import json
from typing import IO, Any

import torch
from torch import Tensor

from umbel import tree
from umbel.tree import Tree

KINDS = {str(kind): kind for kind in (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32,
                                      torch.int16, torch.uint8, torch.bool)}


def send(pipe: IO[bytes], header: dict[str, Any], values: Tree) -> None:
    """A line of JSON that says what follows, and the bytes of each tensor; one that has two names travels once."""
    leaves = {name: leaf.contiguous() for name, leaf in tree.named(values).items()}
    first: dict[tuple[int, int, torch.dtype], str] = {}
    same = {name: first.setdefault((leaf.data_ptr(), leaf.nbytes, leaf.dtype), name) for name, leaf in leaves.items()}
    described = {name: [same[name], str(leaf.dtype), list(leaf.shape)] for name, leaf in leaves.items()}
    pipe.write(json.dumps(header | {"leaves": described}).encode() + b"\n")
    for name, leaf in leaves.items():
        if same[name] == name and leaf.numel():
            pipe.write(_bytes(leaf))
    pipe.flush()


def receive(pipe: IO[bytes]) -> tuple[dict[str, Any], Tree] | None:
    """What `send` wrote at the other end, or None when that end is closed."""
    line = pipe.readline()
    if not line.endswith(b"\n"):
        return None
    header = json.loads(line)
    leaves: dict[str, Tensor] = {}
    for name, (same, dtype, shape) in header.pop("leaves").items():
        if same != name:
            leaves[name] = leaves[same].view(shape)
            continue
        leaves[name] = torch.empty(shape, dtype=KINDS[dtype])
        if leaves[name].numel() and pipe.readinto(_bytes(leaves[name])) < leaves[name].nbytes:  # type: ignore[attr-defined]
            return None
    return header, tree.nested(leaves)


def _bytes(leaf: Tensor) -> memoryview:
    """The memory of a contiguous tensor, not a copy of it."""
    return leaf.view(-1).view(torch.uint8).numpy().data
