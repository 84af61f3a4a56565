"""How the work of a federation is done. Algorithms never import from here."""

from umbel.engines.local import LocalEngine
from umbel.engines.loop import LoopEngine
from umbel.engines.simulator import Simulator

ENGINES: dict[str, type[LocalEngine]] = {"simulator": Simulator, "loop": LoopEngine}

__all__ = ["ENGINES", "LocalEngine", "LoopEngine", "Simulator"]
