"""All methods, by the name that a person types."""

from umbel.algorithms.base import Algorithm, Local, State
from umbel.algorithms.cfl import CFL
from umbel.algorithms.cflgt import CFLGT
from umbel.algorithms.fedavg import FedAvg
from umbel.algorithms.fedavg_ft import FedAvgFT
from umbel.algorithms.fedclust import FedClust
from umbel.algorithms.fedgroup import FedGroup
from umbel.algorithms.fednova import FedNova
from umbel.algorithms.fedprox import FedProx
from umbel.algorithms.fedsem import FedSEM
from umbel.algorithms.fedsoft import FedSoft
from umbel.algorithms.flag import FLAG
from umbel.algorithms.flhc import FLHC
from umbel.algorithms.ifca import IFCA
from umbel.algorithms.kmeans import KMeans
from umbel.algorithms.lg import LGFedAvg
from umbel.algorithms.oneshot import OneShot
from umbel.algorithms.oracle import Oracle
from umbel.algorithms.pacfl import PACFL
from umbel.algorithms.perfedavg import PerFedAvg
from umbel.algorithms.scaffold import Scaffold
from umbel.algorithms.solo import Solo

ALGORITHMS: dict[str, type[Algorithm]] = {
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "fednova": FedNova,
    "scaffold": Scaffold,
    "fedavg-ft": FedAvgFT,
    "perfedavg": PerFedAvg,
    "lg": LGFedAvg,
    "solo": Solo,
    "oracle": Oracle,
    "flag": FLAG,
    "pacfl": PACFL,
    "fedclust": FedClust,
    "cflgt": CFLGT,
    "kmeans": KMeans,
    "ifca": IFCA,
    "cfl": CFL,
    "fedsoft": FedSoft,
    "flhc": FLHC,
    "fedsem": FedSEM,
    "fedgroup": FedGroup,
}

__all__ = [
    "ALGORITHMS", "CFL", "CFLGT", "FLAG", "FLHC", "IFCA", "PACFL", "Algorithm", "FedAvg", "FedAvgFT", "FedClust",
    "FedGroup", "FedNova", "FedProx", "FedSEM", "FedSoft", "KMeans", "LGFedAvg", "Local", "OneShot", "Oracle",
    "PerFedAvg", "Scaffold", "Solo", "State",
]  # fmt: skip
