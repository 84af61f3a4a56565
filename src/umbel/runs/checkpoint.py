"""A run folder: written so that a kill at any moment leaves something that can be resumed.

    recipe.toml                               what is to be done
    env.json  model.json  partition.npz  preparation.json    written once, before the first round
    checkpoint.json                           what belongs to the newest round on disk, with digests; renamed last
    rounds.jsonl                              one line a round
    state-<r>.safetensors memory-<r>...       the newest round's
    best-<r>.safetensors                      the state of the best round so far, where that one is kept
    evidence-<r>.safetensors                  why the clusters are what they are; rewritten when that changes
    result.json clusters.json forecasts.json
    state.safetensors memory.safetensors evidence.safetensors     at the end

Nothing here is a pickle. A thread writes, beside the next rounds' work, not oftener than once a second: rounds that are
quicker share a checkpoint. A kill costs the rounds since the last one, which are done again and end in the same bits.
"""

import fcntl
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

from umbel import files, tree
from umbel.algorithms.base import Algorithm, State
from umbel.errors import UmbelError
from umbel.files import Digest, json_bytes, make_folder, there, write_atomically, write_json
from umbel.nets.model import Model
from umbel.runs.arrays import check_memory, check_state
from umbel.runs.beside import Beside
from umbel.runs.kinds import hold
from umbel.runs.recipe import plain, to_toml
from umbel.runs.schema import CLUSTERS, RECORD, RESULT, SCHEMA, forecasts_of, records_of
from umbel.runs.sealed import AGAIN, CHECKPOINT, Sealed, sealed
from umbel.runs.tensors import at_hand, from_bytes, pieces
from umbel.tree import Tree

KINDS = ("state", "memory", "evidence", "best")  # of safetensors files, fields of `Unwritten`
AT_THE_END = ("result.json", "clusters.json", "forecasts.json")  # what is no more once a run goes on
LETTING_GO = 1.0  # seconds in which a process that was just killed gives its lock back
PRIVATE = ("memory", "evidence", "best")  # clients' models and signatures are for the owner's eyes


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

    def check(self, net: Model, algorithm: Algorithm, clients: int, folder: Path) -> None:
        """Refuse what is not of this network and of so many clients."""
        for state in (self.state, self.kept):
            check_state(state, net, clients, algorithm.has_cluster_model, folder)
        check_memory(self.memory, self.memory_rounds, net, folder)

    def on(self, device: torch.device) -> State:
        """The state with its models where an engine wants them; labels and evidence stay on the CPU."""
        values: Tree = state_tree(self.state)
        models: Tree = {name: tree.to(value, device) for name, value in values.items() if isinstance(value, dict)}
        return replace(self.state, **models)


@dataclass(frozen=True)
class Unwritten:
    """What the next checkpoint will hold: the newest round, and what else is new."""

    round: int
    state: Tree
    memory: Tree
    memory_rounds: dict[str, int]
    evidence: Tree | None = None  # None = as it was
    best: Tree | None = None
    best_round: int = -1


class RunFolder:
    """One run on disk, and the lock on it."""

    def __init__(self, path: Path, lock: int, recipe: Mapping[str, Any]) -> None:
        self.path = path
        self._lock: int | None = lock
        self._bound: dict[str, Any] = {"recipe": plain(recipe), "partition_hash": None, "versions": {}}
        self._fixed: dict[str, str] = {}  # files that are written once, with their digests
        self._lines, self._length, self._digest = 0, 0, files.digester()  # of rounds.jsonl
        self._evidence: Tree = {}  # as it was last handed over
        self._written: dict[str, dict[str, str]] = {}  # by kind: the file on disk, with its digest
        self._next: Unwritten | None = None
        self._new_lines: list[bytes] = []
        self._beside = Beside()

    @classmethod
    def create(cls, path: Path, recipe: Mapping[str, Any]) -> "RunFolder":
        """A fresh folder with its recipe in it; one that holds anything is refused and left as it was."""
        make_folder(path, advice="Change --out")
        folder = cls(path, _locked(path), recipe)
        try:
            files.clear_leftovers(path)  # of a kill in this function
            if any(path.iterdir()):
                raise UmbelError(f"The run folder {path} must be new or empty, and it is not: choose another with"
                                 " --out, or go on with it by --resume.")
            write_atomically(path / "recipe.toml", to_toml(recipe).encode())
        except BaseException:
            folder.close()
            raise
        return folder

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """An existing run folder, to go on with. Its recipe must be the one that it was begun with."""
        files.refuse_linked_folder(path)
        if not (path / "recipe.toml").is_file():
            raise UmbelError(f"There is no run to resume in {path}: a run folder holds recipe.toml.")
        lock = _locked(path)
        try:
            seal = Sealed(path)
            if not seal.checkpoint and there(path / "rounds.jsonl") and seal.lines.count(b"\n") > 1:
                raise UmbelError(f"The file {path / CHECKPOINT} must say where the run stopped. It is missing."
                                 f" {AGAIN}.")
            folder = cls(path, lock, seal.recipe())
            files.clear_leftovers(path)
            return folder
        except BaseException:
            os.close(lock)
            raise

    def describe(self, about: Mapping[str, bytes], partition_hash: str | None, versions: Mapping[str, str]) -> str:
        """Write what stays the same, and bind the folder to it, before there is any round.

        Of a folder that is bound already it is checked instead; what it was begun with that is not so now, and may
        change bits, is returned as a sentence.
        """
        seal = Sealed(self.path)
        if seal.binds:
            self._refuse_other_rows(seal.checkpoint["partition_hash"], partition_hash)
            self._fixed = {name: digest for name, digest in seal.files.items() if name in about}
            for name in self._fixed:
                seal.read(name)
        else:  # what a run had before its first checkpoint is made anew
            old = [name for name in about if seal.checkpoint and there(self.path / name)]
            self._fixed = {name: files.digest_of(files.read_bytes(self.path / name)) if name in old
                           else write_atomically(self.path / name, content) for name, content in about.items()}
        self._bound |= {"partition_hash": partition_hash, "versions": dict(versions)}
        if not seal.checkpoint:
            self._write_checkpoint(None, {}, {})
        other = [f"{name} {begun}, now {versions[name]}" for name, begun in seal.versions().items()
                 if name in ("umbel", "torch") and begun != versions.get(name)]
        return f"The run in {self.path} was begun with {' and '.join(other)}." if other else ""

    def _refuse_other_rows(self, begun: str | None, now: str | None) -> None:
        if begun != now:
            raise UmbelError(f"The run in {self.path} was begun on other data: the digest of clients' rows was {begun},"
                             f" and is {now}. Give it the same data (--data-dir), or start again with another --out.")

    def change(self, recipe: Mapping[str, Any]) -> None:
        """Another number of rounds for what is still to come, once the checkpoint says that there may be one.

        A result is not one any more, and goes first: after a kill in between, the old recipe makes it again.
        """
        files.remove(self.path / "result.json")
        files.remove(self.path / "clusters.json")
        files.remove(self.path / "forecasts.json")
        old = Sealed(self.path)
        if old.binds:
            left = {name: digest for name, digest in old.files.items() if name not in AT_THE_END}
            now = {"files": left, "recipe": self._bound["recipe"], "prolonged": recipe["rounds"]}
            write_json(self.path / CHECKPOINT, sealed({**old.checkpoint, **now}))
        write_atomically(self.path / "recipe.toml", to_toml(recipe).encode())
        self._bound["recipe"] = plain(recipe)

    def close(self) -> None:
        """Write what is not on disk yet, as far as that can be done, and give the lock back."""
        if self._lock is None:
            return
        try:
            self.flush()
        except UmbelError:
            pass  # whoever closes after an error has another to tell; who wants to know calls `flush` first
        finally:
            os.close(self._lock)
            self._lock = None

    # Rounds

    def commit(self, round: int, state: State, memory: Tree, memory_rounds: dict[str, int],
               record: dict[str, Any], best: bool = False, wait: bool = False) -> None:
        """Keep a round, soon or, with `wait`, before this returns.

        `best`: this is the best round so far, and its state is kept until there is a better one.
        """
        before = self._next
        new = Unwritten(round, state_tree(state), memory, memory_rounds)
        if before is not None:  # rounds that share a checkpoint
            new = replace(new, evidence=before.evidence, best=before.best, best_round=before.best_round)
        if best:
            new = replace(new, best=state_tree(state, evidence=True), best_round=round)
        if state.evidence is not self._evidence:
            self._evidence = state.evidence
            new = replace(new, evidence=state.evidence)
        self.add_line(record)  # first: a line too many is cut off, should a signal come in between
        self._next = new
        if wait:
            self.flush()
        elif self._beside.ready():
            self._hand_over()

    def add_line(self, record: dict[str, Any]) -> None:
        """A round's line in rounds.jsonl, to be written with the next checkpoint."""
        self._new_lines.append(line_of(record))

    def flush(self) -> None:
        """Wait until everything is on disk."""
        self._beside.wait()
        if self._next is not None:
            self._hand_over()
            self._beside.wait()

    def _hand_over(self) -> None:
        """Let the writer begin. What lies on a GPU is fetched here: there it could fall into a graph's recording."""
        assert self._next is not None
        trees: dict[str, Any] = {kind: at_hand(values) for kind in KINDS
                                 if (values := getattr(self._next, kind)) is not None}
        new, lines = replace(self._next, **trees), b"".join(self._new_lines)
        self._next, self._new_lines = None, []
        self._beside.begin(lambda: self._write(new, lines))

    def _write(self, new: Unwritten, lines: bytes) -> None:
        """Make rounds durable: files and lines first, the checkpoint that names them last."""
        for kind in KINDS:
            if (values := getattr(new, kind)) is not None:
                name = f"{kind}-{new.best_round if kind == 'best' else new.round}.safetensors"
                self._written[kind] = self._write_tree(name, values, kind in PRIVATE)
        files.append(self.path / "rounds.jsonl", lines)
        self._seen(lines, self._lines, self._length, self._digest)
        named = {name: digest for each in self._written.values() for name, digest in each.items()}
        self._write_checkpoint(new.round, named, new.memory_rounds)
        self._drop_all_but(named)

    def _write_tree(self, name: str, values: Tree, private: bool) -> dict[str, str]:
        """Write a tree, unless it is empty; return the file's name and digest."""
        return {name: write_atomically(self.path / name, pieces(values), private=private)} if values else {}

    def _write_checkpoint(self, round: int | None, named: Mapping[str, str], memory_rounds: Mapping[str, int]) -> None:
        write_json(self.path / CHECKPOINT, sealed({
            "schema": SCHEMA, "round": round, "files": {**self._fixed, **named},
            "memory_rounds": dict(sorted(memory_rounds.items())), **self._bound,
            "lines": self._about_lines(),
        }))

    def _about_lines(self) -> dict[str, Any]:
        return {"count": self._lines, "bytes": self._length, "digest": self._digest.hexdigest()}

    def _seen(self, lines: bytes, count: int = 0, length: int = 0, digest: Digest | None = None) -> None:
        """These lines are in rounds.jsonl, behind as many others."""
        self._lines, self._length = count + lines.count(b"\n"), length + len(lines)
        self._digest = digest or files.digester()
        self._digest.update(lines)

    def _drop_all_but(self, wanted: Mapping[str, str]) -> None:
        """Remove files of earlier rounds or of an earlier end."""
        for old in self.path.glob("*.safetensors"):
            if _kind(old.name) in KINDS and old.name not in wanted:
                files.remove(old)

    def load(self, kind: type[State]) -> Saved | None:
        """The last committed round, to go on from, or None when the run was stopped before its first.

        What a killed run wrote after it is cut off.
        """
        self.flush()
        seal, lines = Sealed(self.path), self.path / "rounds.jsonl"
        saved = saved_in(seal, kind)
        if saved is None:
            files.remove(lines)
            return None
        named = {name: digest for name, digest in seal.checkpoint["files"].items() if name.endswith(".safetensors")}
        self._written = {_kind(name): {name: digest} for name, digest in named.items()}
        self._evidence = saved.state.evidence
        kept = b"".join(_lines(seal, saved.round))
        if os.lstat(lines).st_size > len(kept):
            write_atomically(lines, kept)
        self._seen(kept)
        return saved

    # The end

    def change_last_line(self, record: dict[str, Any]) -> None:
        """Another record of the last round: a run that was stopped early is tested after it.

        The checkpoint admits both before the one takes the other's place.
        """
        self.flush()
        seal = Sealed(self.path)
        before = seal.lines.splitlines(keepends=True)
        self._seen(b"".join([*before[:-1], line_of(record)]))
        write_json(self.path / CHECKPOINT, sealed({**seal.checkpoint, "lines_tested": self._about_lines()}))
        write_atomically(self.path / "rounds.jsonl", b"".join([*before[:-1], line_of(record)]))

    def finish(self, result: dict[str, Any], clusters: dict[str, Any], forecasts: dict[str, Any] | None) -> None:
        """Put the result beside the last state, which loses its round number."""
        self.flush()
        hold(result, RESULT, "the new result.json")
        hold(clusters, CLUSTERS, "the new clusters.json")
        shown = None if forecasts is None else json_bytes(forecasts_of(forecasts, clusters, "the new forecasts.json"))
        checkpoint = Sealed(self.path).checkpoint
        last = {name: digest for name, digest in checkpoint["files"].items() if name.endswith(".safetensors")}
        for name in last:
            _also(self.path / name, self.path / f"{_kind(name)}.safetensors")
        named = {f"{_kind(name)}.safetensors": digest for name, digest in last.items()}
        table, end = json_bytes(clusters), json_bytes(result)
        digests = {"clusters.json": files.digest_of(table), "result.json": files.digest_of(end),
                   **({} if shown is None else {"forecasts.json": files.digest_of(shown)})}
        self._write_checkpoint(checkpoint["round"], {**named, **digests}, checkpoint["memory_rounds"])
        self._drop_all_but(named)
        if shown is not None:  # clients' rows are for the owner's eyes
            write_atomically(self.path / "forecasts.json", shown, private=True)
        write_atomically(self.path / "clusters.json", table)
        write_atomically(self.path / "result.json", end)


# Reading, of which nothing is changed


def last_saved(seal: Sealed, kind: type[State], info: Mapping[str, Any]) -> Saved:
    """What the folder of a finished run holds of its end, of which `info` is the result."""
    saved = saved_in(seal, kind)
    if saved is None:
        raise UmbelError(f"The run in {seal.path} must hold its last state, and does not: checkpoint.json is missing.")
    labels: object = saved.kept.labels
    if not isinstance(labels, torch.Tensor) or labels.tolist() != list(info["clusters"]["labels"].values()):
        raise UmbelError(f"The state in {seal.path} must have the clusters of its result.json. It has others. {AGAIN}.")
    return saved


def saved_in(seal: Sealed, kind: type[State]) -> Saved | None:
    """The last committed round of a folder, or None where there is none."""
    checkpoint = seal.checkpoint
    if not checkpoint or checkpoint["round"] is None:
        return None
    trees: dict[str, Tree] = {each: {} for each in KINDS}
    for name, digest in checkpoint["files"].items():
        if name.endswith(".safetensors"):
            trees[_kind(name)] = _tree(seal.path / name, digest)
    state = _state(seal.path, kind, {**trees["state"], "evidence": trees["evidence"]})
    best = _state(seal.path, kind, trees["best"]) if trees["best"] else None
    return Saved(checkpoint["round"], state, trees["memory"], checkpoint["memory_rounds"],
                 _records(seal, checkpoint["round"]), best)


def _lines(seal: Sealed, last: int) -> list[bytes]:
    """The lines of rounds.jsonl up to a round; the first is of round -1."""
    return seal.lines.splitlines(keepends=True)[: last + 2]


def _records(seal: Sealed, last: int) -> list[dict[str, Any]]:
    lines = _lines(seal, last)
    whole = len(lines) == last + 2 and lines[-1].endswith(b"\n")
    records = records_of(b"".join(lines), seal.path / "rounds.jsonl") if whole else []
    if not whole or [record["round"] for record in records] != list(range(-1, last + 1)):
        raise UmbelError(f"The file {seal.path / 'rounds.jsonl'} must hold every round up to {last}, the checkpoint's."
                         f" It was cut short or changed. {AGAIN}.")
    return records


def _tree(path: Path, digest: str) -> Tree:
    content = files.read_bytes(path) if there(path) else b""
    if files.digest_of(content) != digest:
        raise UmbelError(f"The checkpoint file {path} must be as checkpoint.json describes it. It is missing, cut short"
                         f" or changed ({len(content):,} bytes). {AGAIN}.")
    return from_bytes(content, path)


def line_of(record: Mapping[str, Any]) -> bytes:
    """A round's line in rounds.jsonl, which whoever reads it will find as it is described."""
    hold(record, RECORD, "a new line of rounds.jsonl")
    return (json.dumps(record, allow_nan=False) + "\n").encode()


def _also(path: Path, name: Path) -> None:
    """Give a file a second name, without a copy where the disk can do that."""
    if path == name:
        return
    files.remove(name)
    try:
        os.link(path, name)
    except OSError:  # not every file system has two names for a file
        write_atomically(name, files.read_bytes(path), private=_kind(path.name) in PRIVATE)


def _state(path: Path, kind: type[State], values: Tree) -> State:
    try:
        return kind(**values)
    except TypeError as error:
        raise UmbelError(f"The checkpoint in {path} is of another method than the recipe's. {AGAIN}.") from error


def _kind(name: str) -> str:
    """`state` for state-7.safetensors and for state.safetensors."""
    return name.removesuffix(".safetensors").split("-")[0]


def _locked(path: Path) -> int:
    """A lock on the folder itself, which the end of the process gives back, however it ends."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    limit = time.monotonic() + LETTING_GO
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return handle
        except OSError as error:
            if time.monotonic() < limit:
                time.sleep(0.05)
                continue
            os.close(handle)
            raise UmbelError(f"The run folder {path} is in use by another process: wait for it, or use"
                             " --out.") from error
