"""How the work of a federation is done. Algorithms never import from here."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from umbel.registry import Registry, attributes

if TYPE_CHECKING:
    import torch

    from umbel.data.clients import Population
    from umbel.engines.local import LocalEngine
    from umbel.engines.loop import LoopEngine
    from umbel.engines.simulator import Simulator
    from umbel.federation.door import Federation
    from umbel.nets.model import Model

ENGINES: "Registry[Callable[[Model, Population, int, torch.device], Federation]]" = Registry("engine", {
    "simulator": "umbel.engines.simulator:Simulator",
    "loop": "umbel.engines.loop:LoopEngine",
    "flower": "umbel.flower.ray:RayFlower",
}, extras={"flower": "flower"})

if not TYPE_CHECKING:  # to mypy a module's __getattr__ would make any name right
    __getattr__, __dir__ = attributes(__name__, [
        "umbel.engines.local:LocalEngine", "umbel.engines.loop:LoopEngine", "umbel.engines.simulator:Simulator",
    ])

__all__ = ["ENGINES", "LocalEngine", "LoopEngine", "Simulator"]
