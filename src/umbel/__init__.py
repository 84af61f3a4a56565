"""Clustered federated learning: find out which clients belong together, train one model per group."""

from umbel.algorithms import ALGORITHMS, Algorithm, FedAvg, FedAvgFT, FedProx, Local, Oracle, Solo, State
from umbel.data.clients import Pool, Population, Work
from umbel.data.scenarios import SCENARIOS
from umbel.data.sources import DATASETS, Dataset
from umbel.errors import UmbelError
from umbel.experiment import Experiment, simulate
from umbel.federation import Cohort, Federation, Heard
from umbel.models import MODELS, Model
from umbel.result import Result
from umbel.run import Round, Session, rounds, run
from umbel.tasks import TASKS, Client, Loop, Plain, Reply, Rows, register
from umbel.tree import Held

__all__ = [
    "ALGORITHMS", "DATASETS", "MODELS", "SCENARIOS", "TASKS",
    "Algorithm", "Client", "Cohort", "Dataset", "Experiment", "FedAvg", "FedAvgFT", "FedProx", "Federation", "Heard",
    "Held", "Local", "Loop", "Model", "Oracle", "Plain", "Pool", "Population", "Reply", "Result", "Round", "Rows",
    "Session", "Solo", "State", "UmbelError", "Work",
    "register", "rounds", "run", "simulate",
]  # fmt: skip
