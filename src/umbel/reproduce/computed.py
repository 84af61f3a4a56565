"""Tables that need no federation: angles between data sets, synthetic Gaussians, distances layer by layer."""

from collections.abc import Callable

from umbel.data.sources import Dataset
from umbel.reproduce.table import Cell

Load = Callable[[str], Dataset]
Compute = Callable[[Cell, Load, int], dict[str, float]]  # cell, how to load a data set, seed -> value by measure

COMPUTED: dict[str, Compute] = {}
