"""What a pickle of arrays and labels holds, read without Python's unpickler.

A pickle is a program: it may name any function and have it called, claim sizes that it has not, and nest without end.
Here its words are read one after the other. Only those in which CIFAR's files are written, by Python 2 or 3 and NumPy 1
or 2, mean anything; nothing that they name is imported, and no memory is taken but for what the file really holds.
"""

import re
from collections.abc import Callable
from pickletools import genops
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

MOST_WORDS = 2**22  # CIFAR-100's 50,000 rows are half a million
ONLY = "where only arrays and labels may stand"

_VALUES = {
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "BINBYTES", "SHORT_BINBYTES",
    "BINBYTES8", "BYTEARRAY8", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8",
}
_CONSTANTS: dict[str, Callable[[], Any]] = {
    "EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple,
    "NONE": lambda: None, "NEWTRUE": lambda: True, "NEWFALSE": lambda: False,
}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


def load(content: bytes) -> Any:
    """The dictionary, list, array or number that a pickle describes; ValueError where it is anything else."""
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}
    room = 2 * len(content)  # bytes that may be made of its texts: one may be used again and again

    def since(start: int) -> list[Any]:
        taken = stack[start:]
        del stack[start:]
        return taken

    value: Any
    for count, (word, value, _) in enumerate(genops(content)):
        if count == MOST_WORDS:
            raise ValueError(f"more than {MOST_WORDS:,} words")
        match word.name:
            case "PROTO" | "FRAME":
                pass
            case name if name in _VALUES:
                stack.append(value)
            case "STRING" | "BINSTRING" | "SHORT_BINSTRING":  # of Python 2, whose texts are bytes
                stack.append(str(value).encode("latin1"))
            case name if name in _CONSTANTS:
                stack.append(_CONSTANTS[name]())
            case name if name in _TUPLES:
                stack.append(tuple(since(len(stack) - _TUPLES[name])))
            case "MARK":
                marks.append(len(stack))
            case "TUPLE":
                stack.append(tuple(since(marks.pop())))
            case "LIST":
                stack.append(since(marks.pop()))
            case "DICT":
                stack.append(_put({}, since(marks.pop())))
            case "APPEND":
                _listed(stack, since(len(stack) - 1))
            case "APPENDS":
                _listed(stack, since(marks.pop()))
            case "SETITEM":
                _put(stack[-3], since(len(stack) - 2))
            case "SETITEMS":
                _put(stack[marks[-1] - 1], since(marks.pop()))
            case "PUT" | "BINPUT" | "LONG_BINPUT" | "MEMOIZE":
                memo[len(memo) if value is None else int(value)] = stack[-1]
            case "GET" | "BINGET" | "LONG_BINGET":
                stack.append(memo[int(value)])
            case "GLOBAL":
                stack.append(_named(*str(value).split(" ", 1)))
            case "STACK_GLOBAL":
                stack.append(_named(*since(len(stack) - 2)))
            case "REDUCE":
                function, arguments = since(len(stack) - 2)
                if not callable(function):
                    raise ValueError(f"a call of what is no function, {ONLY}")
                stack.append(function(*arguments))
                room -= len(stack[-1]) if isinstance(stack[-1], bytes) else 0
            case "BUILD":
                [state] = since(len(stack) - 1)
                room -= _fill(stack[-1], state)
            case "STOP":
                return stack.pop()
            case name:
                raise ValueError(f"the word {name}, {ONLY}")
        if room < 0:
            raise ValueError("texts that become larger than the file")
    raise ValueError("no end")


def _listed(stack: list[Any], new: list[Any]) -> None:
    if not isinstance(stack[-1], list):
        raise ValueError("a list that is none")
    stack[-1].extend(new)


def _put(into: Any, pairs: list[Any]) -> dict[Any, Any]:
    """Keys are texts: Python would hash tuples in tuples until its stack ends."""
    if not isinstance(into, dict) or not all(isinstance(key, str | bytes) for key in pairs[::2]):
        raise ValueError("a dictionary whose keys are not all texts")
    into.update(zip(pairs[::2], pairs[1::2], strict=True))
    return into


def _fill(made: Any, state: Any) -> int:
    """An array's numbers, once it is there; how many bytes they are. A dtype stays what its name says."""
    if isinstance(made, np.dtype):
        return 0
    if not isinstance(made, np.ndarray):
        raise ValueError(f"the state of an object, {ONLY}")
    _, shape, dtype, columns_first, raw = state
    if not isinstance(dtype, np.dtype) or not isinstance(raw, bytes):
        raise ValueError(f"an array of {type(raw).__name__}, where only plain numbers may stand")
    filled: Any = made
    filled.__setstate__((1, shape, dtype, bool(columns_first), raw))
    return len(raw)


# What CIFAR's files name is answered by these. numpy's own `dtype` and `ndarray` would not do: with a forged flag they
# take raw bytes for pointers to objects.


def _dtype(code: str | bytes, align: object = False, copy: object = False) -> np.dtype[Any]:
    text = code.decode() if isinstance(code, bytes) else code
    if not re.fullmatch("[biuf][1248]", text):
        raise ValueError(f"an array of dtype '{text[:20]}', where only plain numbers may stand")
    return np.dtype(text)


def _reconstruct(kind: object, shape: object, code: object) -> NDArray[Any]:
    return np.empty(0, np.uint8)  # filled later


def _frombuffer(data: bytes, dtype: np.dtype[Any], shape: tuple[int, ...], order: Literal["C", "F"]) -> NDArray[Any]:
    if not isinstance(dtype, np.dtype):
        raise ValueError("an array of no dtype, where only plain numbers may stand")
    return np.frombuffer(data, dtype).reshape(shape, order=order)


def _encode(text: str, encoding: str) -> bytes:
    return text.encode("latin1")  # how Python 3 writes bytes in protocol 2


def _named(module: Any, name: Any) -> Any:
    if not isinstance(module, str) or not isinstance(name, str) or (module, name) not in _ADMITTED:
        raise ValueError(f"a call of {str(module)[:40]}.{str(name)[:40]}, {ONLY}")
    return _ADMITTED[module, name]


_ADMITTED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): "ndarray",  # named, never called
    ("numpy", "dtype"): _dtype,
    ("_codecs", "encode"): _encode,
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _reconstruct for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _frombuffer for core in ("core", "_core")},
}
