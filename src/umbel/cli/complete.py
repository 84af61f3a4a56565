"""The names that a shell offers on Tab. A person waits for them: they come from registries, and bring no torch."""

from umbel.algorithms import ALGORITHMS
from umbel.engines import ENGINES
from umbel.nets import MODELS


def methods() -> list[str]:
    """Of `umbel list methods`."""
    return list(ALGORITHMS)


def models() -> list[str]:
    """Of `umbel list models`."""
    return list(MODELS)


def metrics() -> list[str]:
    """What runs are judged by."""
    from umbel.nets.objective import METRICS  # brings numpy

    return list(METRICS)


def engines() -> list[str]:
    """All of them, whether or not the extra for one is there."""
    return list(ENGINES)


def devices() -> list[str]:
    """As `Experiment.device` has them, which would bring torch."""
    return ["auto", "cpu", "cuda"]


def data() -> list[str]:
    """Of `umbel list data`."""
    from umbel.data.sources import DATASETS  # brings numpy, as the scenarios do

    return list(DATASETS)


def scenarios() -> list[str]:
    """Of `umbel list scenarios`."""
    from umbel.data.scenarios import SCENARIOS

    return list(SCENARIOS)


def tables() -> list[str]:
    """Of `umbel list tables`."""
    from umbel.reproduce.papers import names  # reads the papers' files

    return names()
