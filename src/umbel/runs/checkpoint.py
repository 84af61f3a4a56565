"""A run folder: written so that a kill at any moment leaves something that can be resumed.

    recipe.toml  env.json  partition.npz      written once, before the first round
    rounds.jsonl                              one line a round
    model.json                                the network's name, shape and normalisation
    state-<r>.safetensors memory-<r>...       the newest round; checkpoint.json names them, and is renamed last
    best-<r>.safetensors                      the state of the best round so far, where that one is kept
    evidence-<r>.safetensors                  why the clusters are what they are; rewritten when that changes
    result.json clusters.json state.safetensors memory.safetensors evidence.safetensors     at the end

Nothing here is a pickle.
"""

import fcntl
import json
import os
from dataclasses import dataclass, fields, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from umbel import tree
from umbel.algorithms.base import State
from umbel.errors import UmbelError
from umbel.files import read_json, write_atomically, write_json
from umbel.runs.schema import record_from
from umbel.tree import Tree


def to_bytes(values: Tree) -> bytes:
    """A tree as safetensors. Equal trees give equal bytes: there is no metadata."""
    return save_tensors({name: leaf.cpu().contiguous().clone() for name, leaf in tree.named(values).items()})


def from_bytes(content: bytes, path: Path) -> Tree:
    """Undo `to_bytes`."""
    try:
        return tree.nested(load_tensors(content))
    except SafetensorError as error:
        raise UmbelError(f"The file {path} must be a safetensors file. It cannot be read: {error}.") from error


def state_tree(state: State, evidence: bool = False) -> Tree:
    """A state as a tree; its evidence has a file of its own, since it seldom changes."""
    return {each.name: getattr(state, each.name) for each in fields(state) if evidence or each.name != "evidence"}


@dataclass(frozen=True)
class Saved:
    """What a run folder remembers of its last committed round."""

    round: int
    state: State
    memory: Tree
    memory_rounds: dict[str, int]
    records: list[dict[str, Any]]
    best: State | None = None  # of the best round so far, where the best is kept

    @property
    def kept(self) -> State:
        """The state that is the result's: of the best round, where that one is kept, else of the last."""
        return self.state if self.best is None else self.best

    def on(self, device: torch.device) -> State:
        """The state with its models where an engine wants them; labels and evidence stay on the CPU."""
        values: Tree = state_tree(self.state)
        models: Tree = {name: tree.to(value, device) for name, value in values.items() if isinstance(value, dict)}
        return replace(self.state, **models)


class RunFolder:
    """One run on disk, and the lock on it."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock
        self._evidence: Tree = {}  # as it was last written ...
        self._evidence_file: dict[str, str] = {}  # ... to this file, with its digest
        self._best_file: dict[str, str] = {}  # the same of the best round's state

    @classmethod
    def create(cls, path: Path, recipe: str) -> "RunFolder":
        """A fresh folder with its recipe in it; one that holds anything is refused and left as it was."""
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UmbelError(f"The run folder {path} cannot be made: {error.strerror}. Change --out.") from error
        folder = cls(path, _locked(path))
        if any(file.name != ".recipe.toml.part" for file in path.iterdir()):  # what a kill in this function leaves
            folder.close()
            raise UmbelError(
                f"The run folder {path} must be new or empty, and it is not: choose another with --out,"
                " or go on with it by --resume."
            )
        write_atomically(path / "recipe.toml", recipe.encode())
        return folder

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """An existing run folder, to go on with."""
        if not (path / "recipe.toml").is_file():
            raise UmbelError(f"There is no run to resume in {path}: a run folder holds recipe.toml.")
        return cls(path, _locked(path))

    def change(self, recipe: str) -> None:
        """Another recipe for what is still to come. A result is not one any more, and goes first: after a kill between
        the two, the old recipe makes it again.
        """
        (self.path / "result.json").unlink(missing_ok=True)
        (self.path / "clusters.json").unlink(missing_ok=True)
        write_atomically(self.path / "recipe.toml", recipe.encode())

    def close(self) -> None:
        """Give the lock back."""
        os.close(self._lock)

    def commit(self, round: int, state: State, memory: Tree, memory_rounds: dict[str, int],
               record: dict[str, Any] | None, best: bool = False) -> None:
        """Make a round durable: its files and its line first, the checkpoint that names them last.

        `best`: this is the best round so far, and its state is kept until there is a better one.
        """
        if best:
            self._best_file = self._write("best", round, state_tree(state, evidence=True))
        if state.evidence is not self._evidence:
            self._evidence, self._evidence_file = state.evidence, self._write("evidence", round, state.evidence)
        files = {
            **self._write("state", round, state_tree(state)), **self._write("memory", round, memory),
            **self._evidence_file, **self._best_file,
        }
        if record is not None:
            self.write_line(record)
        write_json(self.path / "checkpoint.json", {
            "round": round, "files": files, "memory_rounds": dict(sorted(memory_rounds.items())),
        })
        self._drop_all_but(set(files))

    def _write(self, kind: str, round: int, values: Tree) -> dict[str, str]:
        """Write a tree, unless it is empty; return the file's name and digest."""
        if not values:
            return {}
        name, content = f"{kind}-{round}.safetensors", to_bytes(values)
        write_atomically(self.path / name, content)
        return {name: _digest(content)}

    def write_line(self, record: dict[str, Any]) -> None:
        """Add one round to rounds.jsonl."""
        with (self.path / "rounds.jsonl").open("a") as lines:
            lines.write(json.dumps(record, allow_nan=False) + "\n")
            lines.flush()
            os.fsync(lines.fileno())

    def _drop_all_but(self, wanted: set[str]) -> None:
        """Remove files of earlier rounds or of an earlier end, and what a kill in the middle of a write left."""
        ours = (old for old in self.path.glob("*.safetensors") if _kind(old.name) in KINDS)
        for old in [*ours, *self.path.glob(".*.part")]:
            if old.name not in wanted:
                old.unlink()

    def load(self, kind: type[State]) -> Saved | None:
        """The last committed round, or None when the run was stopped before its first."""
        path, lines = self.path / "checkpoint.json", self.path / "rounds.jsonl"
        if not path.exists():
            if lines.exists() and lines.read_bytes().count(b"\n") > 1:  # one line comes before the first checkpoint
                raise UmbelError(f"The file {path} must say where the run stopped. It is missing: {_AGAIN}.")
            lines.unlink(missing_ok=True)
            return None
        checkpoint = read_json(path)
        try:
            last, files, memory_rounds = int(checkpoint["round"]), checkpoint["files"], checkpoint["memory_rounds"]
            digests = {_kind(name): (name, digest) for name, digest in files.items()}
            digests["state"]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UmbelError(f"The file {path} must be as umbel writes it. It was changed: {_AGAIN}.") from error
        trees: dict[str, Tree] = {each: self._verified(*digests[each]) if each in digests else {} for each in KINDS}
        state = _state(path, kind, {**trees["state"], "evidence": trees["evidence"]})
        best = _state(path, kind, trees["best"]) if trees["best"] else None
        self._best_file = dict([digests["best"]]) if "best" in digests else {}
        self._evidence = state.evidence
        self._evidence_file = dict([digests["evidence"]]) if "evidence" in digests else {}
        return Saved(last, state, trees["memory"], memory_rounds, self._records(last), best)

    def _verified(self, name: str, digest: str) -> Tree:
        path = self.path / name
        content = path.read_bytes() if path.exists() else b""
        if _digest(content) != digest:
            raise UmbelError(
                f"The checkpoint file {path} must be as checkpoint.json describes it. It is missing, cut short or"
                f" changed ({len(content):,} bytes): {_AGAIN}."
            )
        return from_bytes(content, path)

    def _records(self, last: int) -> list[dict[str, Any]]:
        """The lines up to the checkpoint's round; what a killed run wrote after it is cut off."""
        path = self.path / "rounds.jsonl"
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        kept = lines[: last + 2]  # the first is of round -1
        try:
            records = [record_from(line) for line in kept]
            whole = [record["round"] for record in records] == list(range(-1, last + 1)) and kept[-1].endswith(b"\n")
        except (ValueError, TypeError, KeyError):
            whole = False
        if not whole:
            raise UmbelError(
                f"The file {path} must hold every round up to {last}, the checkpoint's. It was cut short or changed:"
                f" {_AGAIN}."
            )
        if len(lines) > len(kept):
            write_atomically(path, b"".join(kept))
        return records

    def change_last_line(self, record: dict[str, Any]) -> None:
        """Another record of the last round: a run that was stopped early is tested after it."""
        path = self.path / "rounds.jsonl"
        lines = path.read_bytes().splitlines(keepends=True)
        write_atomically(path, b"".join([*lines[:-1], (json.dumps(record, allow_nan=False) + "\n").encode()]))

    def finish(self, result: dict[str, Any], clusters: dict[str, Any]) -> None:
        """Put the result beside the last state, which loses its round number."""
        checkpoint = read_json(self.path / "checkpoint.json")
        renamed = {}
        for name, digest in checkpoint["files"].items():
            plain = f"{_kind(name)}.safetensors"
            write_atomically(self.path / plain, (self.path / name).read_bytes())
            renamed[plain] = digest
        write_json(self.path / "checkpoint.json", {**checkpoint, "files": renamed})
        self._drop_all_but(set(renamed))
        write_json(self.path / "clusters.json", clusters)
        write_json(self.path / "result.json", result)


def last_saved(path: Path, kind: type[State]) -> Saved:
    """What the folder of a finished run holds of its end; the folder is not kept open."""
    folder = RunFolder.open(path)
    try:
        saved = folder.load(kind)
    finally:
        folder.close()
    if saved is None:
        raise UmbelError(f"The run in {path} must hold its last state, and does not: checkpoint.json is missing.")
    return saved


KINDS = ("state", "memory", "evidence", "best")  # of safetensors files
_AGAIN = "start again with another --out"


def _state(path: Path, kind: type[State], values: Tree) -> State:
    try:
        return kind(**values)
    except TypeError as error:
        raise UmbelError(f"The checkpoint {path} is of another method than the recipe's: {_AGAIN}.") from error


def _kind(name: str) -> str:
    """`state` for state-7.safetensors and for state.safetensors."""
    return name.removesuffix(".safetensors").split("-")[0]


def _digest(content: bytes) -> str:
    return blake2b(content, digest_size=16).hexdigest()


def _locked(path: Path) -> int:
    """A lock on the folder itself, which the end of the process gives back, however it ends."""
    handle = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        raise UmbelError(f"The run folder {path} is in use by another process: wait for it, or use --out.") from error
    return handle
