"""All methods, by the name that a person types. A method's file is imported when it is first asked for."""

from typing import TYPE_CHECKING

from umbel.registry import Registry, attributes

if TYPE_CHECKING:
    from umbel.algorithms.auto import Auto
    from umbel.algorithms.base import Algorithm, Local, State, training
    from umbel.algorithms.cfl import CFL
    from umbel.algorithms.cflgt import CFLGT
    from umbel.algorithms.fedavg import FedAvg
    from umbel.algorithms.fedavg_ft import FedAvgFT
    from umbel.algorithms.fedbn import FedBN
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

_METHODS = {
    "fedavg": "umbel.algorithms.fedavg:FedAvg",
    "fedprox": "umbel.algorithms.fedprox:FedProx",
    "fednova": "umbel.algorithms.fednova:FedNova",
    "scaffold": "umbel.algorithms.scaffold:Scaffold",
    "fedavg-ft": "umbel.algorithms.fedavg_ft:FedAvgFT",
    "fedbn": "umbel.algorithms.fedbn:FedBN",
    "perfedavg": "umbel.algorithms.perfedavg:PerFedAvg",
    "lg": "umbel.algorithms.lg:LGFedAvg",
    "solo": "umbel.algorithms.solo:Solo",
    "oracle": "umbel.algorithms.oracle:Oracle",
    "auto": "umbel.algorithms.auto:Auto",
    "flag": "umbel.algorithms.flag:FLAG",
    "pacfl": "umbel.algorithms.pacfl:PACFL",
    "fedclust": "umbel.algorithms.fedclust:FedClust",
    "cflgt": "umbel.algorithms.cflgt:CFLGT",
    "kmeans": "umbel.algorithms.kmeans:KMeans",
    "ifca": "umbel.algorithms.ifca:IFCA",
    "cfl": "umbel.algorithms.cfl:CFL",
    "fedsoft": "umbel.algorithms.fedsoft:FedSoft",
    "flhc": "umbel.algorithms.flhc:FLHC",
    "fedsem": "umbel.algorithms.fedsem:FedSEM",
    "fedgroup": "umbel.algorithms.fedgroup:FedGroup",
}
_BESIDE = [
    "umbel.algorithms.base:Algorithm", "umbel.algorithms.base:Local", "umbel.algorithms.base:State",
    "umbel.algorithms.base:training",
    "umbel.algorithms.oneshot:OneShot",
]

ALGORITHMS: "Registry[type[Algorithm]]" = Registry("method", _METHODS, group="umbel.methods",
                                                        admit="umbel.algorithms.base:admitted", files=True)

if not TYPE_CHECKING:  # to mypy a module's __getattr__ would make any name right
    __getattr__, __dir__ = attributes(__name__, [*_METHODS.values(), *_BESIDE])


def import_all() -> None:
    """Import all of umbel's own. A task is registered by its method's file: who is told names alone needs every one."""
    tuple(ALGORITHMS.values())


__all__ = [
    "ALGORITHMS", "CFL", "CFLGT", "FLAG", "FLHC", "IFCA", "PACFL", "Algorithm", "Auto", "FedAvg", "FedAvgFT", "FedBN",
    "FedClust", "FedGroup", "FedNova", "FedProx", "FedSEM", "FedSoft", "KMeans", "LGFedAvg", "Local", "OneShot",
    "Oracle", "PerFedAvg", "Scaffold", "Solo", "State", "import_all", "training",
]  # fmt: skip
