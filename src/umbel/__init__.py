"""Clustered federated learning: find out which clients belong together, train one model per group."""

from umbel import proximity, signatures
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
from umbel.data.clients import Pool, Population, Work
from umbel.data.scenarios import SCENARIOS
from umbel.data.sources import DATASETS, Dataset
from umbel.errors import UmbelError
from umbel.experiment import Experiment, simulate
from umbel.federation import Cohort, Federation, Heard
from umbel.models import Model
from umbel.networks import MODELS
from umbel.result import Result
from umbel.run import Round, Session, rounds, run
from umbel.tasks import TASKS, Client, Leaf, Loop, Plain, Reply, Rows, UpTo, register
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
