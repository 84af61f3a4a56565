"""What a run folder was sealed with: checkpoint.json says to which recipe, rows, lines and files its round belongs.

A file of the folder is read through here, so that one which is not as it was written is refused by its name. The seal
finds accidents: another recipe, other data, a damaged disk, a file from elsewhere. It does not stop a forger, who can
seal anew.
Folders of umbel 0.1, and those that were given no checkpoint yet, have no seal, and are believed.
"""

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from umbel.data.prepare import Preparation
from umbel.errors import UmbelError
from umbel.files import Bytes, digest_of, digester, opened, parse_json, read_bytes, read_json, read_text, there
from umbel.runs import schema
from umbel.runs.kinds import hold
from umbel.runs.recipe import LARGEST_RECIPE, differing, flat, read_toml
from umbel.runs.schema import Json

CHECKPOINT = "checkpoint.json"
AGAIN = "Put it back, or start again with another --out"


def sealed(checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    """A checkpoint with its seal: the digest of all that it says."""
    content = {name: value for name, value in checkpoint.items() if name != "seal"}
    return {**content, "seal": digest_of(json.dumps(content, sort_keys=True, allow_nan=False).encode())}


class Sealed:
    """A run folder as something to read; nothing here is written or locked."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def checkpoint(self) -> dict[str, Any]:
        """checkpoint.json, or an empty one where there is none."""
        file = self.path / CHECKPOINT
        if not there(file):
            return {}
        found = read_json(file)
        held = schema.checkpoint_of(found, file)
        if "seal" in held and sealed(held) != held:
            raise UmbelError(f"The file {file} must be as umbel wrote it. It was changed. {AGAIN}.")
        return held

    @property
    def binds(self) -> bool:
        """Whether there is a seal."""
        return "seal" in self.checkpoint

    @property
    def files(self) -> Mapping[str, str]:
        """The digest of each file that is sealed."""
        return self.checkpoint.get("files", {}) if self.binds else {}

    def there(self, name: str) -> bool:
        """Whether the folder has this file, or should have it."""
        return name in self.files or there(self.path / name)

    def read(self, name: str) -> bytes:
        """A file as it was sealed."""
        if name in self.files and not there(self.path / name):
            raise UmbelError(f"The file {self.path / name} belongs to the run, and is missing. {AGAIN}.")
        content = read_bytes(self.path / name)
        self.check(name, content)
        return content

    def check(self, name: str, content: Bytes) -> None:
        """Refuse a file's content that is not what was sealed."""
        if name in self.files:
            self._compare(name, digest_of(content), len(content))

    def _compare(self, name: str, digest: str, size: int) -> None:
        if digest != self.files[name]:
            raise UmbelError(f"The file {self.path / name} must be as umbel wrote it. It was cut short or changed"
                             f" ({size:,} bytes). {AGAIN}.")

    def read_json(self, name: str) -> Any:
        """A file of JSON as it was sealed."""
        return parse_json(self.read(name), f"The file {self.path / name}")

    def recipe(self) -> dict[str, Any]:
        """recipe.toml, which must be the one that the run was begun with; rounds may have been added."""
        file = self.path / "recipe.toml"
        own: Json = hold(read_toml(file), schema.RECIPE, file)
        begun = self.checkpoint["recipe"] if self.binds else own
        if own.get("rounds") == self.checkpoint.get("prolonged", object()):
            begun = {**begun, "rounds": own["rounds"]}
        if name := differing(own, begun):
            mine, theirs = (flat(recipe).get(name) for recipe in (own, begun))
            raise UmbelError(f"The file {file} was changed since the run began: its '{name}' is"
                             f" {mine!r}, and was {theirs!r}. {AGAIN}.")
        return own

    def recipe_text(self) -> str:
        """recipe.toml as it stands, for people."""
        if self.binds:
            self.recipe()
        return read_text(self.path / "recipe.toml", LARGEST_RECIPE)

    def versions(self) -> Mapping[str, str]:
        """Of what wrote the last checkpoint, as far as that is known."""
        versions: Mapping[str, str] = (self.checkpoint if self.binds else self.environment()).get("versions", {})
        return versions

    def checked(self, name: str) -> Path:
        """Where a file lies that is as it was sealed; it is looked through without taking memory for all of it."""
        path, digest, size = self.path / name, digester(), 0
        with opened(path) as file:
            while name in self.files and (piece := file.read(2**20)):
                digest.update(piece)
                size += len(piece)
        if name in self.files:
            self._compare(name, digest.hexdigest(), size)
        return path

    @cached_property
    def lines(self) -> bytes:
        """rounds.jsonl, up to the round that was sealed; without a seal, all of it."""
        file = self.path / "rounds.jsonl"
        if not self.binds:
            return read_bytes(file) if there(file) else b""
        known = [self.checkpoint[name] for name in ("lines", "lines_tested") if name in self.checkpoint]
        content = read_bytes(file) if there(file) else b""
        fitting = (content[: about["bytes"]] for about in known
                   if digest_of(content[: about["bytes"]]) == about["digest"])
        lines = next(fitting, None)
        if lines is None:
            raise UmbelError(f"The file {file} must hold every round up to {self.checkpoint['round']}, the"
                             f" checkpoint's, as it was written. It was cut short or changed. {AGAIN}.")
        return lines

    # What they hold, in today's words and as it is described

    def result(self) -> Json:
        """result.json."""
        return schema.result_of(self.read_json("result.json"), self.path / "result.json")

    def clusters(self) -> Json:
        """clusters.json."""
        return schema.clusters_of(self.read_json("clusters.json"), self.path / "clusters.json")

    def records(self) -> list[Json]:
        """rounds.jsonl."""
        return schema.records_of(self.lines, self.path / "rounds.jsonl")

    def finished(self) -> tuple[Json, Json, list[Json]]:
        """All three, which must not contradict each other."""
        found = self.result(), self.clusters(), self.records()
        schema.check_together(*found, self.path)
        return found

    def environment(self) -> Json:
        """env.json, or nothing where there is none."""
        file = self.path / "env.json"
        return hold(self.read_json(file.name), schema.ENVIRONMENT, file) if self.there(file.name) else {}

    def preparation(self) -> Preparation | None:
        """preparation.json, or None where rows were given as they are."""
        file = self.path / "preparation.json"
        return schema.preparation_of(self.read_json(file.name), file) if self.there(file.name) else None

    def forecasts(self, clusters: Json) -> Json | None:
        """forecasts.json, or None where there is none."""
        file = self.path / "forecasts.json"
        return schema.forecasts_of(self.read_json(file.name), clusters, file) if self.there(file.name) else None

    def model(self) -> Json:
        """model.json."""
        return schema.model_of(self.read_json("model.json"), self.path / "model.json")
