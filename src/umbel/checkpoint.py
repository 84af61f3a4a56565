"""A run folder: written so that a kill at any moment leaves something that can be resumed.

    recipe.toml  env.json  partition.npz      written once, before the first round
    rounds.jsonl                              one line a round
    state-<r>.safetensors memory-<r>...       the newest round; checkpoint.json names them, and is renamed last
    evidence.safetensors                      why the clusters are what they are; rewritten when that changes
    result.json clusters.json state.safetensors memory.safetensors     at the end

Nothing here is a pickle.
"""

import fcntl
import json
import os
from dataclasses import dataclass, fields, replace
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from umbel import tree
from umbel.algorithms.base import State
from umbel.errors import UmbelError
from umbel.tree import Tree


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file that is either the old one or the new one, whatever happens."""
    temporary = path.with_name(f".{path.name}.part")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


def write_json(path: Path, value: Any) -> None:
    """JSON for people: indented, not-a-number as null."""
    write_atomically(path, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode())


def read_json(path: Path) -> Any:
    """JSON from a file of ours."""
    try:
        return json.loads(path.read_text())
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UmbelError(f"The file {path} must hold JSON as umbel writes it. It cannot be read: {error}.") from error


def to_bytes(values: Tree) -> bytes:
    """A tree as safetensors. Equal trees give equal bytes: there is no metadata."""
    return save_tensors({name: leaf.cpu().contiguous().clone() for name, leaf in tree.named(values).items()})


def from_bytes(content: bytes, path: Path) -> Tree:
    """Undo `to_bytes`."""
    try:
        return tree.nested(load_tensors(content))
    except SafetensorError as error:
        raise UmbelError(f"The file {path} must be a safetensors file. It cannot be read: {error}.") from error


def state_tree(state: State) -> Tree:
    """A state as a tree, without its evidence."""
    return {each.name: getattr(state, each.name) for each in fields(state) if each.name != "evidence"}


@dataclass(frozen=True)
class Saved:
    """What a run folder remembers of its last committed round."""

    round: int
    state: State
    memory: Tree
    memory_rounds: dict[str, int]
    records: list[dict[str, Any]]

    def on(self, device: torch.device) -> State:
        """The state with its models where an engine wants them; labels and evidence stay on the CPU."""
        values: Tree = state_tree(self.state)
        moved: Tree = {name: tree.to(value, device) for name, value in values.items() if isinstance(value, dict)}
        return replace(self.state, **moved)


class RunFolder:
    """One run on disk, and the lock on it."""

    def __init__(self, path: Path, lock: IO[str]) -> None:
        self.path = path
        self._lock = lock
        self._evidence: Tree | None = None  # the object that evidence.safetensors holds

    @classmethod
    def create(cls, path: Path, recipe: str) -> "RunFolder":
        """A fresh folder with its recipe in it; one that holds anything is refused and left as it was."""
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise UmbelError(
                f"The run folder {path} must be new or empty, and it is not: choose another with --out,"
                " or go on with it by --resume."
            )
        path.mkdir(parents=True, exist_ok=True)
        write_atomically(path / "recipe.toml", recipe.encode())
        return cls(path, _locked(path))

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """An existing run folder, to go on with."""
        if not (path / "recipe.toml").is_file():
            raise UmbelError(f"There is no run to resume in {path}: a run folder holds recipe.toml.")
        return cls(path, _locked(path))

    def close(self) -> None:
        """Give the lock back."""
        self._lock.close()

    def commit(self, round: int, state: State, memory: Tree, memory_rounds: dict[str, int],
               record: dict[str, Any] | None) -> None:
        """Make a round durable: its files and its line first, the checkpoint that names them last."""
        files = {f"state-{round}.safetensors": to_bytes(state_tree(state))}
        if memory:
            files[f"memory-{round}.safetensors"] = to_bytes(memory)
        if state.evidence is not self._evidence:
            write_atomically(self.path / "evidence.safetensors", to_bytes(state.evidence))
            self._evidence = state.evidence
        for name, content in files.items():
            write_atomically(self.path / name, content)
        if record is not None:
            self.write_line(record)
        digests = {name: blake2b(content, digest_size=16).hexdigest() for name, content in files.items()}
        write_json(self.path / "checkpoint.json", {"round": round, "files": digests, "memory_rounds": memory_rounds})
        self._drop_all_but(set(files))

    def write_line(self, record: dict[str, Any]) -> None:
        """Add one round to rounds.jsonl."""
        with (self.path / "rounds.jsonl").open("a") as lines:
            lines.write(json.dumps(record, allow_nan=False) + "\n")
            lines.flush()
            os.fsync(lines.fileno())

    def _drop_all_but(self, wanted: set[str]) -> None:
        for old in [*self.path.glob("state-*.safetensors"), *self.path.glob("memory-*.safetensors")]:
            if old.name not in wanted:
                old.unlink()

    def load(self, kind: type[State]) -> Saved | None:
        """The last committed round, or None when the run was stopped before its first."""
        if not (self.path / "checkpoint.json").exists():
            (self.path / "rounds.jsonl").unlink(missing_ok=True)
            return None
        checkpoint = read_json(self.path / "checkpoint.json")
        trees = {_kind(name): self._verified(name, digest) for name, digest in checkpoint["files"].items()}
        evidence = self.path / "evidence.safetensors"
        if evidence.exists():
            trees["evidence"] = from_bytes(evidence.read_bytes(), evidence)
        state = kind(**trees["state"], evidence=trees.get("evidence", {}))
        self._evidence = state.evidence
        return Saved(checkpoint["round"], state, trees.get("memory", {}), checkpoint["memory_rounds"],
                     self._records(checkpoint["round"]))

    def _verified(self, name: str, digest: str) -> Tree:
        path = self.path / name
        content = path.read_bytes() if path.exists() else b""
        if blake2b(content, digest_size=16).hexdigest() != digest:
            raise UmbelError(
                f"The checkpoint file {path} must be as checkpoint.json describes it. It is missing, cut short or"
                f" changed ({len(content):,} bytes): start again with another --out."
            )
        return from_bytes(content, path)

    def _records(self, last: int) -> list[dict[str, Any]]:
        """The lines up to the checkpoint's round; what a killed run wrote after it is cut off."""
        path = self.path / "rounds.jsonl"
        kept = []
        for line in path.read_text().splitlines():
            try:
                record = json.loads(line)
            except json.JSONDecodeError:
                break  # the tail of a killed write
            if record["round"] <= last:
                kept.append(record)
        if not kept or kept[-1]["round"] != last:
            raise UmbelError(f"The file {path} must reach round {last}, as checkpoint.json says. It was cut short.")
        write_atomically(path, "".join(json.dumps(record) + "\n" for record in kept).encode())
        return kept

    def finish(self, result: dict[str, Any], clusters: dict[str, Any]) -> None:
        """Put the result beside the last state, which loses its round number."""
        checkpoint = read_json(self.path / "checkpoint.json")
        renamed = {}
        for name, digest in checkpoint["files"].items():
            plain = f"{_kind(name)}.safetensors"
            write_atomically(self.path / plain, (self.path / name).read_bytes())
            renamed[plain] = digest
        write_json(self.path / "checkpoint.json", {**checkpoint, "files": renamed})
        self._drop_all_but(set())
        write_json(self.path / "clusters.json", clusters)
        write_json(self.path / "result.json", result)


def _kind(name: str) -> str:
    """`state` for state-7.safetensors and for state.safetensors."""
    return name.removesuffix(".safetensors").split("-")[0]


def _locked(path: Path) -> IO[str]:
    handle = (path / "recipe.toml").open()
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        handle.close()
        raise UmbelError(f"The run folder {path} is in use by another process: wait for it, or use --out.") from error
    return handle
