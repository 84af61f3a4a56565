"""A federation of sites, and the list of their names in the run folder.

`roster.json` has the run's name at the nodes, the fingerprint of its model, and the clients in the order of a
checkpoint's rows.
"""

from pathlib import Path
from typing import Any

from flwr.serverapp import Grid

from umbel.errors import UmbelError
from umbel.federation.door import Cohort, Heard
from umbel.federation.provenance import Provenance
from umbel.federation.tasks import Task
from umbel.files import read_json, write_json
from umbel.flower.server import FlowerFederation, log
from umbel.flower.wire import fingerprint
from umbel.nets.model import Model
from umbel.runs import schema
from umbel.runs.kinds import hold

ROSTER = "roster.json"


class Sites(FlowerFederation):
    """A federation whose list of names is kept in the run folder: row i of a checkpoint is the client names[i].

    Names are only added, and written before a state can have their rows; so any checkpoint fits the list.
    """

    memory_is_here = False

    def __init__(self, folder: Path, net: Model, grid: Grid, seed: int, run: str, **rest: Any) -> None:
        super().__init__(net, grid, seed, run=run, **rest)
        self.roster = folder / ROSTER
        setup = {"data": "own", "scenario": "sites", "model": net.name, "seed": seed, "engine": "flower"}
        self.provenance = Provenance(setup=setup)

    @classmethod
    def again(cls, folder: Path, net: Model, grid: Grid, seed: int, **rest: Any) -> "Sites":
        """The federation of a run that is resumed, with the name and the clients that its roster has."""
        roster = hold(read_json(folder / ROSTER), schema.ROSTER, folder / ROSTER)
        if fingerprint(net) != roster["fingerprint"]:
            raise UmbelError(f"The run in {folder} is of another model than this app's.")
        return cls(folder, net, grid, seed, roster["run"], names=roster["names"], **rest)

    def arrive(self, round: int) -> None:
        """As on any grid; new names are added to the roster."""
        known = len(self.names)
        super().arrive(round)
        if len(self.names) > known or not self.roster.exists():
            self.write_down()

    def map(self, task: Task, cohort: Cohort, **rest: Any) -> Heard:
        """As on any grid, with a line in the log: an exchange takes seconds at least."""
        started = self.clock.now()
        heard = super().map(task, cohort, **rest)
        taken, asked = self.clock.now() - started, len(cohort.ids)
        log.info("%s: %d of %d answers, %.1f s", cohort.phase, len(heard.ids), asked, taken)
        return heard

    def write_down(self) -> None:
        """Write the roster as it is now."""
        write_json(self.roster, {"run": self.run, "fingerprint": fingerprint(self.net), "names": self.names})
