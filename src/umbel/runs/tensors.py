"""Trees of tensors as safetensors files. Equal trees give equal bytes: there is no metadata.

The library reads them. They are written here, piece by piece: it would first put all of them into one block of memory,
and hold up every other thread of Python meanwhile.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load
from torch import Tensor

from umbel import tree
from umbel.errors import UmbelError
from umbel.runs.kinds import Text
from umbel.tree import Tree

# The names of types in a file, in the order in which it holds tensors of them; those of one type are sorted by name.
TYPES = {torch.int64: "I64", torch.float64: "F64", torch.float32: "F32", torch.int32: "I32", torch.bfloat16: "BF16",
         torch.float16: "F16", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL"}

DEEPEST = 16  # names in a name: memory has client/last/layer
AXES = 8  # of a tensor
NAMES = Text(4000)


def pieces(values: Tree) -> Iterator[bytes | memoryview]:
    """A tree as safetensors, to be written one piece after the other: what each tensor is, then the numbers."""
    leaves = {name: leaf.detach().cpu().contiguous() for name, leaf in tree.named(values).items()}
    order = sorted(leaves, key=lambda name: (list(TYPES).index(leaves[name].dtype), name))
    about, end = {}, 0
    for name in order:
        start, end = end, end + leaves[name].nbytes
        about[name] = {"dtype": TYPES[leaves[name].dtype], "shape": list(leaves[name].shape),
                       "data_offsets": [start, end]}
    head = json.dumps(about, separators=(",", ":"), ensure_ascii=False).encode()
    head += b" " * (-len(head) % 8)
    yield len(head).to_bytes(8, "little") + head
    for name in order:
        if leaves[name].numel():
            yield leaves[name].view(-1).view(torch.uint8).numpy().data


def to_bytes(values: Tree) -> bytes:
    """A tree as safetensors."""
    return b"".join(pieces(values))


def from_bytes(content: bytes, path: Path) -> Tree:
    """The tree in a file, of which these are the bytes."""
    try:
        leaves = load(content)
    except MemoryError as error:
        raise UmbelError(f"The file {path} is larger than the memory that is free here.") from error
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, OverflowError) as error:
        raise UmbelError(f"The file {path} must be a safetensors file. It cannot be read: {error}.") from error
    _refuse_odd({name: (leaf.dtype, leaf.shape) for name, leaf in leaves.items()}, len(content), path)
    return tree.nested(leaves)


class Arrays:
    """The tensors of a file, each read when it is asked for: the file may be larger than the memory.

    Whoever opens one has looked at the file before, as `Sealed.checked` does: the library would follow a link.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            file: Any = safe_open(path, "pt")
            self.names: set[str] = set(file.keys())
            sizes = {name: (None, file.get_slice(name).get_shape()) for name in self.names}
        except (SafetensorError, OSError, ValueError, KeyError, RuntimeError, OverflowError) as error:
            raise UmbelError(f"The file {path} must be a safetensors file. It cannot be read: {error}.") from error
        self._file = file
        _refuse_odd(sizes, path.stat().st_size, path)

    def get(self, name: str) -> Tensor:
        """One of them."""
        try:
            leaf: Tensor = self._file.get_tensor(name)
        except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
            raise UmbelError(f"The file {self.path} must be a safetensors file. Its '{name[:60]}' cannot be read:"
                             f" {error}.") from error
        _refuse_odd({name: (leaf.dtype, leaf.shape)}, self.path.stat().st_size, self.path)
        return leaf


def _refuse_odd(leaves: Mapping[str, tuple[torch.dtype | None, Sequence[int]]], size: int, path: Path) -> None:
    """Raise where something is in a file of `size` bytes that umbel writes into none.

    Shapes that have a 0 in them take no room, however large their other numbers are.
    """
    tables = {name[:at] for name in leaves if name.count("/") <= DEEPEST
              for at, sign in enumerate(name) if sign == "/"}
    for name, (kind, shape) in leaves.items():
        rules = {"names that are nested a few times": name.count("/") <= DEEPEST,
                 "names without control characters": NAMES.fits(name),
                 "no name that is a tensor and a table of them": name not in tables,
                 "the types that umbel writes": kind is None or kind in TYPES,
                 "shapes that fit its size": len(shape) <= AXES and max(shape, default=0) <= size}
        for rule, kept in rules.items():
            if not kept:
                raise UmbelError(f"The file {path} must have {rule}. Got {name[:60]!a} with the shape"
                                 f" {list(shape)[:AXES]}.")


def at_hand(values: Tree) -> Tree:
    """The same tree on the CPU. Rows of one stack, as clients' pages are on a GPU, come over together."""
    leaves = tree.named(values)
    if all(leaf.device.type == "cpu" for leaf in leaves.values()):
        return values
    blocks: dict[int, torch.UntypedStorage] = {}

    def near(leaf: Tensor) -> Tensor:
        block = leaf.untyped_storage()
        if block.data_ptr() not in blocks:
            blocks[block.data_ptr()] = block.cpu()  # type: ignore[no-untyped-call]
        empty = torch.empty(0, dtype=leaf.dtype)
        return empty.set_(blocks[block.data_ptr()], leaf.storage_offset(), leaf.shape, leaf.stride())

    return tree.nested({name: leaf if leaf.device.type == "cpu" else near(leaf) for name, leaf in leaves.items()})
