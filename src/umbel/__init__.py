"""Clustered federated learning: find out which clients belong together, train one model per group.

    fed = umbel.simulate("digits", scenario="rotation-4", clients=12)
    result = umbel.run(umbel.FLAG(), fed, rounds=20)

This is the one page of public names. Each is imported when it is first asked for, so `import umbel` brings no torch.
"""

from typing import TYPE_CHECKING

from umbel.registry import attributes

if TYPE_CHECKING:  # what mypy and editors see; _HOMES says the same to Python
    from umbel.algorithms import (
        ALGORITHMS,
        CFL,
        CFLGT,
        FLAG,
        FLHC,
        IFCA,
        PACFL,
        Algorithm,
        Auto,
        FedAvg,
        FedAvgFT,
        FedBN,
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
        training,
    )
    from umbel.clustering import grouping, proximity, signatures
    from umbel.data.clients import Pool, Population, Work
    from umbel.data.own import from_folder, from_frame, from_huggingface, from_partitions, read_site, to_huggingface
    from umbel.data.scenarios import SCENARIOS
    from umbel.data.sources import DATASETS, Dataset, open_dataset
    from umbel.diagnosis.diagnose import Diagnosis, diagnose
    from umbel.errors import UmbelError
    from umbel.federation import uplink
    from umbel.federation.door import Cohort, Federation, Heard
    from umbel.federation.tasks import TASKS, Client, Leaf, Loop, Plain, Reply, Rows, UpTo, register
    from umbel.fields import choice, number
    from umbel.nets import MODELS
    from umbel.nets.model import Model
    from umbel.nets.objective import Classify, NextToken, Regress
    from umbel.nets.wrap import wrap
    from umbel.pages.write import report
    from umbel.runs.compare import Comparison, compare
    from umbel.runs.experiment import Experiment
    from umbel.runs.newcomer import Admission, admit
    from umbel.runs.result import Result, finish
    from umbel.runs.run import Round, rounds
    from umbel.runs.session import Session, load, resume, run
    from umbel.runs.simulate import simulate
    from umbel.tree import Held

__all__ = [  # noqa: RUF022 (by what they are for)
    # Run a method: a federation on this machine, a run, what came of it.
    "simulate", "run", "Result", "compare", "Comparison", "UmbelError",
    # Before: what clients differ in, and what is worth training.
    "diagnose", "Diagnosis",
    # Afterwards: read a run folder, go on with it, place a newcomer, explain it on a page.
    "load", "resume", "admit", "Admission", "report",
    # Loops of your own: round by round, and a result from any loop; a recipe as data; a run in a folder.
    "rounds", "Round", "finish", "Experiment", "Session",
    # What there is, by the name that a person types. TASKS holds those of the methods that were imported so far.
    "ALGORITHMS", "DATASETS", "MODELS", "SCENARIOS", "TASKS",
    # Methods with one model, or one for each client.
    "FedAvg", "FedProx", "FedNova", "Scaffold", "FedAvgFT", "FedBN", "PerFedAvg", "LGFedAvg", "Solo",
    # The method that finds out what is worth most, and goes on with it.
    "Auto",
    # Methods with clusters: given by the truth, formed at once before training, formed while training.
    "Oracle", "FLAG", "PACFL", "FedClust", "CFLGT", "KMeans", "IFCA", "CFL", "FedSoft", "FLHC", "FedSEM", "FedGroup",
    # Bring your own data or model, and say what is to be learnt.
    "open_dataset", "Dataset", "Pool", "Population", "Model", "wrap", "Classify", "Regress", "NextToken",
    "from_frame", "from_folder", "from_huggingface", "from_partitions", "to_huggingface", "read_site",
    # Write a method: its base classes, how clients train, its settings and state; whom it asks, and who answered.
    "Algorithm", "OneShot", "Local", "training", "number", "choice", "State", "Federation", "Cohort", "Heard", "Held",
    "Work",
    # Write a task: the three kinds, what a client has and replies, what is promised of an answer.
    "register", "Loop", "Rows", "Plain", "Client", "Reply", "Leaf", "UpTo",
    # What clients are described by, how far apart they are, how they are grouped; what answers pass on their way out.
    "signatures", "proximity", "grouping", "uplink",
]  # fmt: skip

_HOMES = {
    "umbel.algorithms": "ALGORITHMS CFL CFLGT FLAG FLHC IFCA PACFL Algorithm Auto FedAvg FedAvgFT FedBN FedClust"
                        " FedGroup FedNova FedProx FedSEM FedSoft KMeans LGFedAvg Local OneShot Oracle PerFedAvg"
                        " Scaffold Solo State training",
    "umbel.clustering": "grouping proximity signatures",
    "umbel.data.clients": "Pool Population Work",
    "umbel.data.own": "from_folder from_frame from_huggingface from_partitions read_site to_huggingface",
    "umbel.data.scenarios": "SCENARIOS",
    "umbel.data.sources": "DATASETS Dataset open_dataset",
    "umbel.diagnosis.diagnose": "Diagnosis diagnose",
    "umbel.errors": "UmbelError",
    "umbel.federation": "uplink",
    "umbel.federation.door": "Cohort Federation Heard",
    "umbel.federation.tasks": "TASKS Client Leaf Loop Plain Reply Rows UpTo register",
    "umbel.fields": "choice number",
    "umbel.nets": "MODELS",
    "umbel.nets.model": "Model",
    "umbel.nets.objective": "Classify NextToken Regress",
    "umbel.nets.wrap": "wrap",
    "umbel.pages.write": "report",
    "umbel.runs.compare": "Comparison compare",
    "umbel.runs.experiment": "Experiment",
    "umbel.runs.newcomer": "Admission admit",
    "umbel.runs.result": "Result finish",
    "umbel.runs.run": "Round rounds",
    "umbel.runs.session": "Session load resume run",
    "umbel.runs.simulate": "simulate",
    "umbel.tree": "Held",
}

if not TYPE_CHECKING:  # to mypy a module's __getattr__ would make any name right
    __getattr__, __dir__ = attributes(__name__, [f"{home}:{name}" for home, names in _HOMES.items()
                                                 for name in names.split()])
