"""What travels between a Flower server and its nodes, and how it is read without being trusted.

A message holds one `ConfigRecord` of plain words and one `ArrayRecord` for each thing that is sent. Tensors go by path
names, as in files. Nothing that arrives is unpickled, imported or evaluated; an array's bytes are looked at before
memory is taken for them.
"""

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from hashlib import blake2b
from io import BytesIO
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from umbel import tree
from umbel.data.clients import Work
from umbel.errors import UmbelError
from umbel.federation.door import Call, Cohort
from umbel.federation.tasks import TASKS, Leaf, UpTo
from umbel.federation.uplink import parse, written
from umbel.files import parse_json
from umbel.nets.model import Model
from umbel.tree import Held, Tree

WORDS = "words"  # the record of plain words in every message
HEADER = 256  # bytes: more than numpy writes before an array's numbers
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")  # of a client or a run: also a folder's name
DTYPES = {"float32": torch.float32, "float64": torch.float64, "int64": torch.int64, "int32": torch.int32,
          "int16": torch.int16, "uint8": torch.uint8}
LONGEST = 300  # letters of a sentence from outside that are shown


class Unbelievable(ValueError):
    """What arrived is not what was asked for. The message is the reason, for the log and the result."""


# Words ----------------------------------------------------------------------------------------------------------------


def words(content: RecordDict) -> dict[str, Any]:
    """The plain words of a message."""
    record = content.get(WORDS)
    if not isinstance(record, ConfigRecord):
        raise Unbelievable("has no words")
    return dict(record)


def shown(text: object) -> str:
    """Words from outside, fit for a log: printable, and not long."""
    return "".join(sign if sign.isprintable() else "?" for sign in str(text)[:LONGEST])


@lru_cache(maxsize=16)
def fingerprint(net: Model) -> str:
    """Sixteen hex digits that two models share only when one can take the other's place."""
    layers = [(name, tuple(leaf.shape), str(leaf.dtype)) for name, leaf in net.shapes.items()]
    about: list[Any] = [net.shape, net.objective.described(), net.head, net.mean.flatten().tolist(),
                        net.std.flatten().tolist(), sorted(layers)]
    about += [frozen] if (frozen := net.frozen_digest()) else []  # what does not travel must be the same at every site
    about += [net.levels] if any(net.levels) else []  # which column is which category
    return blake2b(json.dumps(about).encode(), digest_size=8).hexdigest()


# Arrays ---------------------------------------------------------------------------------------------------------------


def record(values: Tree) -> ArrayRecord:
    """A tree of tensors as it travels."""
    arrays = ArrayRecord()
    for name, leaf in tree.named(values).items():
        if str(leaf.dtype).removeprefix("torch.") not in DTYPES:
            raise UmbelError(f"Tensors travel as {', '.join(DTYPES)}. Got {leaf.dtype} for '{name}'.")
        arrays[name] = Array(leaf.detach().cpu().contiguous().numpy())
    return arrays


def tensors(arrays: object) -> Tree:
    """Undo `record`."""
    if not isinstance(arrays, ArrayRecord):
        raise Unbelievable("has no arrays")
    try:
        return tree.nested({name: _tensor(array) for name, array in arrays.items()})
    except (AttributeError, TypeError) as error:  # `a` and `a/b` in one record
        raise Unbelievable("has names that contradict each other") from error


def _tensor(array: Array) -> Tensor:
    """One array, from numpy's own format of version 1 and no other."""
    try:
        return _decoded(array)
    except Unbelievable:
        raise
    except Exception as error:  # numpy's reader of headers raises many kinds
        raise Unbelievable("cannot be read") from error


def _decoded(array: Array) -> Tensor:
    stream = BytesIO(array.data)
    if np.lib.format.read_magic(stream) != (1, 0):
        raise Unbelievable("is in another format")
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream, max_header_size=HEADER)
    declared = (array.stype, array.dtype, tuple(array.shape))
    if fortran or declared != ("numpy.ndarray", str(dtype), shape) or str(dtype) not in DTYPES or not dtype.isnative:
        raise Unbelievable("contradicts itself about its type or shape")
    start = stream.tell()
    if min(shape, default=0) < 0 or len(array.data) - start != dtype.itemsize * int(np.prod(shape, dtype=object)):
        raise Unbelievable("has more or fewer numbers than its shape says")
    return torch.from_numpy(np.frombuffer(array.data, dtype, offset=start).reshape(shape).copy())


def digest(records: Mapping[str, Any]) -> str:
    """Sixteen bytes, in hex, of all arrays and their names: they show whether numbers were changed on their way."""
    total = blake2b(digest_size=16)
    for name in sorted(name for name, value in records.items() if isinstance(value, ArrayRecord)):
        for path in sorted(records[name]):
            array = records[name][path]
            total.update(json.dumps([name, path, array.dtype, list(array.shape), len(array.data)]).encode())
            total.update(array.data)
    return total.hexdigest()


def promised(arrays: object, expected: Tree) -> Tree:
    """The tensors of an answer that has the names and at most the bytes that its task promised.

    Shapes, types and numbers are checked by `Federation.map`, for every engine alike.
    """
    leaves: dict[str, Leaf] = tree.named(expected)  # type: ignore[assignment]
    if not isinstance(arrays, ArrayRecord) or set(arrays) != set(leaves):
        raise Unbelievable("answer has other names than promised")
    for name, leaf in leaves.items():
        if len(arrays[name].data) > most(leaf):
            raise Unbelievable(f"has {len(arrays[name].data):,} bytes for '{name}', at most {most(leaf):,} are due")
    return tensors(arrays)


def most(leaf: Leaf) -> int:
    """Bytes that an array may have at most, framing included."""
    sides = [axis.most if isinstance(axis, UpTo) else axis for axis in leaf.shape]
    return HEADER + leaf.dtype.itemsize * int(np.prod(sides, dtype=object))


# Calls ----------------------------------------------------------------------------------------------------------------


class Parcels:
    """The inputs of one call as records: what several clients receive is one record, so that it is uploaded once."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.shared = {f"shared.{kind}": record({kind: value}) for kind, value in call.shared.items()}
        self.models: dict[tuple[str, int], ArrayRecord] = {}

    def of(self, positions: list[int]) -> dict[str, ArrayRecord]:
        """What a client receives that stands at these positions of the cohort (mostly one)."""
        return self.shared | {
            f"{job}.{kind}": self._own(kind, value, position)
            for job, position in enumerate(positions) for kind, value in self.call.each.items()
        }

    def _own(self, kind: str, value: Any, position: int) -> ArrayRecord:
        if isinstance(value, Held):
            index = int(value.index[position])
            if (kind, index) not in self.models:
                self.models[kind, index] = record({kind: tree.take(value.models, index)})
            return self.models[kind, index]
        return record({kind: tree.take(value, position) if isinstance(value, dict) else value[position]})


def asked(call: Call, jobs: int) -> str:
    """What a call is beside its inputs, as JSON."""
    return json.dumps({"task": call.task.name, "round": call.cohort.round, "phase": call.cohort.phase,
                       "work": list(call.work), "options": call.options, "uplinks": written(call.uplinks),
                       "jobs": jobs, "now": call.now})


FACTS: dict[str, type] = {"task": str, "round": int, "phase": str, "work": list, "options": dict, "uplinks": str,
                          "jobs": int, "now": int}
LATEST = 2**31 - 1  # the number of a round


def facts_of(about: str) -> dict[str, Any]:
    """Undo `asked`, at a node: what a call is beside its inputs, each word of the kind that it must be."""
    facts = parse_json(about, "A call")
    if not isinstance(facts, dict) or {name: type(value) for name, value in facts.items()} != FACTS:
        raise UmbelError(f"A call has the words {', '.join(FACTS)}, each of its kind. This one has others.")
    if [type(each) for each in facts["work"]] != [int, int, int, str]:
        raise UmbelError("The work of a call is told in three whole numbers and a word. That of this one is not.")
    if not (0 <= facts["round"] <= LATEST and 0 <= facts["now"] <= LATEST):
        raise UmbelError(f"The rounds of a call are numbered from 0 to {LATEST}. Those of this one are not.")
    return facts


def call_from(facts: Mapping[str, Any], content: RecordDict) -> Call:
    """Undo `asked` and `Parcels`, at a node: its client stands at all positions of the cohort.

    A task is looked up among those that the node itself has registered.
    """
    if facts["task"] not in TASKS:
        raise UmbelError(f"There is no task '{shown(facts['task'])}' at this node.")
    jobs = facts["jobs"]
    options = {name: tuple(value) if isinstance(value, list) else value for name, value in facts["options"].items()}
    inputs = {name: tensors(arrays) for name, arrays in content.items() if name != WORDS}

    def under(prefix: str) -> Tree:
        return {kind: leaf for name, values in inputs.items() if name.startswith(f"{prefix}.")
                for kind, leaf in values.items()}

    each = [under(str(job)) for job in range(jobs)]
    cohort = Cohort(torch.zeros(jobs, dtype=torch.long), facts["round"], facts["phase"])
    work = Work(*facts["work"]).checked()
    return Call(TASKS[facts["task"]], cohort, work, under("shared"), tree.stack(each) if each[0] else {}, options,
                parse(facts["uplinks"]), facts["now"])
