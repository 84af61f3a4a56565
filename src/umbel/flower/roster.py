"""A federation of sites, and the list of their names in the run folder: `roster.json`."""

from pathlib import Path
from typing import Any

from flwr.serverapp import Grid

from umbel.federation.door import Cohort, Heard
from umbel.federation.tasks import Task
from umbel.flower.server import FlowerFederation, log
from umbel.flower.wire import fingerprint
from umbel.nets.model import Model
from umbel.runs.checkpoint import write_json


class Sites(FlowerFederation):
    """A federation whose list of names is kept in the run folder: rows of a checkpoint are told by it.

    Names are only added, and written before a state can speak of them; so any checkpoint fits the list.
    """

    def __init__(self, folder: Path, net: Model, grid: Grid, seed: int, run: str, **rest: Any) -> None:
        super().__init__(net, grid, seed, run=run, **rest)
        self.roster = folder / "roster.json"
        self.setup = {"data": "own", "scenario": "sites", "model": net.name, "seed": seed, "engine": "flower"}
        self.facts = {"data": "own", "data_part": ""}

    def arrive(self, round: int) -> None:
        """As on any grid, and write down who is new."""
        known = len(self.names)
        super().arrive(round)
        if len(self.names) > known or not self.roster.exists():
            self.write_down()

    def map(self, task: Task, cohort: Cohort, **rest: Any) -> Heard:
        """As on any grid, and say how it went: an exchange takes seconds at least."""
        started = self.clock.now()
        heard = super().map(task, cohort, **rest)
        taken, asked = self.clock.now() - started, len(cohort.ids)
        log.info("%s: %d of %d answers, %.1f s", cohort.phase, len(heard.ids), asked, taken)
        return heard

    def write_down(self) -> None:
        """The run's name at the nodes, its model, and the clients in their order."""
        write_json(self.roster, {"run": self.run, "fingerprint": fingerprint(self.net), "names": self.names})
