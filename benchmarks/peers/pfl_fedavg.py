"""pfl-research's FederatedAveraging on the same work."""

import time
from itertools import cycle

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel
from torch.nn.functional import cross_entropy
from work import LR, MOMENTUM, asked, images, network, tell


class Clock(TrainingProcessCallback):
    """The end of every central iteration."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_train_begin(self, *, model):
        """Nothing is measured yet."""
        self.times.append(time.perf_counter())
        return super().on_train_begin(model=model)

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        """A round is over."""
        self.times.append(time.perf_counter())
        return super().after_central_iteration(aggregate_metrics, model, central_iteration=central_iteration)


if __name__ == "__main__":
    job = asked()
    torch.set_num_threads(job["threads"])
    module = network(job["model"], job["shape"])
    module.loss = lambda x, y, eval=False: cross_entropy(module(x), y)
    module.metrics = lambda x, y, eval=False: {"loss": Weighted(float(cross_entropy(module(x), y)) * len(y), len(y))}
    data = {i: images(job["shape"], job["rows"], i) for i in range(job["clients"])}
    turns = cycle(data)
    people = FederatedDataset(lambda i: Dataset(raw_data=list(data[i])), lambda: next(turns))
    model = PyTorchModel(module, lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, momentum=MOMENTUM),
                         torch.optim.SGD(module.parameters(), lr=1.0))
    clock = Clock()
    rounds = job["rounds"] + 1
    FederatedAveraging().run(
        NNAlgorithmParams(central_num_iterations=rounds, evaluation_frequency=10**9, train_cohort_size=job["clients"],
                          val_cohort_size=0),
        SimulatedBackend(people, people), model,
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=LR, local_batch_size=job["batch"]),
        NNEvalHyperParams(local_batch_size=None), [clock], send_metrics_to_platform=False)
    tell([after - before for before, after in zip(clock.times[:-1], clock.times[1:], strict=True)])
