"""umbel's engines on the work of benchmarks/peers: one JSON argument, one line of JSON; all overhead is counted.

The engine is told by `engine`: simulator, or loop. Workers are processes with one thread each.
"""

import sys
import time
from pathlib import Path

import torch
from engines import LOCAL, population

from umbel.algorithms import FedAvg
from umbel.engines import ENGINES, simulator
from umbel.federation.door import Cohort
from umbel.nets.wrap import build

sys.path.append(str(Path(__file__).parent / "peers"))
from work import asked, tell

if __name__ == "__main__":
    job = asked()
    simulator.WORTH = 0.0  # as in a run of many rounds, which pays for the start of its workers
    net = build(job["model"], tuple(job["shape"]), 10)
    fed = ENGINES[job["engine"]](net, population(tuple(job["shape"]), job["clients"], job["rows"]))
    fed.workers = job["workers"]
    torch.set_num_threads(max(1, job["workers"]))
    algorithm, seconds = FedAvg(local=LOCAL), []
    state = algorithm.init(fed, 0)
    for index in range(job["rounds"] + 1):
        started = time.perf_counter()
        state = algorithm.round(fed, state, Cohort(torch.arange(len(fed.names)), index))
        seconds.append(time.perf_counter() - started)
    fed.close()
    tell(seconds)
