"""All methods, by the name that a person types."""

from umbel.algorithms.base import Algorithm, Local, State
from umbel.algorithms.fedavg import FedAvg
from umbel.algorithms.fedavg_ft import FedAvgFT
from umbel.algorithms.fedprox import FedProx
from umbel.algorithms.oracle import Oracle
from umbel.algorithms.solo import Solo

ALGORITHMS: dict[str, type[Algorithm]] = {
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "fedavg-ft": FedAvgFT,
    "solo": Solo,
    "oracle": Oracle,
}

__all__ = ["ALGORITHMS", "Algorithm", "FedAvg", "FedAvgFT", "FedProx", "Local", "Oracle", "Solo", "State"]
