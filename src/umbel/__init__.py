"""Clustered federated learning: find out which clients belong together, train one model per group."""

from umbel.algorithms import (
    ALGORITHMS,
    CFL,
    CFLGT,
    FLAG,
    FLHC,
    IFCA,
    PACFL,
    Algorithm,
    FedAvg,
    FedAvgFT,
    FedClust,
    FedGroup,
    FedNova,
    FedProx,
    FedSEM,
    FedSoft,
    KMeans,
    LGFedAvg,
    Local,
    OneShot,
    Oracle,
    PerFedAvg,
    Scaffold,
    Solo,
    State,
)
from umbel.clustering import proximity, signatures
from umbel.data.clients import Pool, Population, Work
from umbel.data.scenarios import SCENARIOS
from umbel.data.sources import DATASETS, Dataset
from umbel.errors import UmbelError
from umbel.federation.door import Cohort, Federation, Heard
from umbel.federation.tasks import TASKS, Client, Leaf, Loop, Plain, Reply, Rows, UpTo, register
from umbel.nets.model import Model
from umbel.nets.networks import MODELS
from umbel.runs.experiment import Experiment
from umbel.runs.result import Result
from umbel.runs.run import Round, rounds
from umbel.runs.session import Session, run
from umbel.runs.simulate import simulate
from umbel.tree import Held

__all__ = [  # noqa: RUF022 (registries, methods, nouns, verbs)
    "ALGORITHMS", "DATASETS", "MODELS", "SCENARIOS", "TASKS",
    "CFL", "CFLGT", "FLAG", "FLHC", "IFCA", "PACFL", "FedAvg", "FedAvgFT", "FedClust", "FedGroup", "FedProx", "FedSEM",
    "FedNova", "FedSoft", "KMeans", "LGFedAvg", "Oracle", "PerFedAvg", "Scaffold", "Solo",
    "Algorithm", "Client", "Cohort", "Dataset", "Experiment", "Federation", "Heard", "Held", "Leaf", "Local", "Loop",
    "Model", "OneShot", "Plain", "Pool", "Population", "Reply", "Result", "Round", "Rows", "Session", "State",
    "UmbelError", "UpTo", "Work",
    "proximity", "register", "rounds", "run", "signatures", "simulate",
]  # fmt: skip
