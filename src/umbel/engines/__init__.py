"""How the work of a federation is done. Algorithms never import from here."""

from collections.abc import Callable
from importlib import import_module

import torch

from umbel.data.clients import Population
from umbel.engines.local import LocalEngine
from umbel.engines.loop import LoopEngine
from umbel.engines.simulator import Simulator
from umbel.errors import UmbelError
from umbel.federation.door import Federation
from umbel.nets.model import Model


def _flower(net: Model, population: Population, seed: int, device: torch.device) -> Federation:
    """Flower's own simulation, imported when it is wanted: Flower is an extra."""
    try:
        ray = import_module("umbel.flower.ray")
    except ModuleNotFoundError as error:
        raise UmbelError(f"The engine 'flower' needs {error.name}: pip install 'umbel[flower]'.") from error
    fed: Federation = ray.RayFlower(net, population, seed, device)
    return fed


ENGINES: dict[str, Callable[[Model, Population, int, torch.device], Federation]] = {
    "simulator": Simulator, "loop": LoopEngine, "flower": _flower,
}

__all__ = ["ENGINES", "LocalEngine", "LoopEngine", "Simulator"]
