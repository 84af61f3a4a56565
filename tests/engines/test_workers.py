"""Worker processes on a CPU: the same bits, whoever does the work."""

import gc
import io
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import LOCAL, SEED, TRUTH, gap, play, tiny_model, tiny_population

from umbel import tree
from umbel.algorithms import FedAvg, FedProx, Oracle, Solo
from umbel.engines import Simulator, simulator
from umbel.engines.codec import receive, send
from umbel.federation.door import Cohort, NobodyAnswered
from umbel.nets.wrap import build


def engine(workers, net=None):
    """One client at a time, however small the model is."""
    made = Simulator(net or build("mlp", (1, 3, 3), 3), tiny_population(), SEED, vectorise=False)
    made.workers = workers
    return made


@pytest.fixture(autouse=True)
def _always_worth_it(monkeypatch):
    monkeypatch.setattr(simulator, "WORTH", 0.0)


@pytest.mark.parametrize("method", [FedAvg(local=LOCAL), FedProx(0.1, local=LOCAL), Solo(local=LOCAL),
                                    Oracle(TRUTH, local=LOCAL)],
                         ids=lambda method: type(method).__name__)
def test_workers_change_no_bit(method):
    """Models, labels and what clients remember are the same for one process and for two workers."""
    alone, shared = engine(1), engine(2)
    a, b = play(method, alone), play(method, shared)
    assert shared.crews
    assert not alone.crews
    assert torch.equal(tree.flat(a.models), tree.flat(b.models))
    mine, theirs = alone.memory()[0], shared.memory()[0]
    assert all(gap(mine[name]["last"], theirs[name]["last"]) == 0 for name in mine)
    shared.close()


def test_a_worker_keeps_nothing_that_is_not_finite():
    """A client that trains alone and breaks down is silent, and begins the next round where it began this one."""
    fed = engine(2)
    with pytest.raises(NobodyAnswered, match=r"none of 6 clients gave a usable answer \(not finite\)"):
        play(Solo(local=replace(LOCAL, lr=1e30)), fed, rounds=1)
    assert fed.crews
    assert fed.memory() == ({}, {})
    fed.close()


def test_workers_end_with_their_engine():
    """Processes are ended, and the folder that they read the clients from is removed."""
    fed = engine(2)
    play(FedAvg(local=LOCAL), fed, rounds=1)
    crew = fed.crews[0]
    processes = [worker.process for worker in crew.workers]
    fed.close()
    assert all(process.poll() is not None for process in processes)
    assert not crew.folder.exists()
    play(FedAvg(local=LOCAL), fed, rounds=1)  # and a new crew comes when there is work again
    assert fed.crews[0] is not crew
    fed.close()


def test_a_worker_that_dies_is_an_error():
    """A killed worker is an error, not a wait for ever."""
    fed = engine(1 + 1)
    play(FedAvg(local=LOCAL), fed, rounds=1)
    for worker in fed.crews[0].workers:
        worker.process.kill()
        worker.process.wait()
    with pytest.raises((RuntimeError, BrokenPipeError)):
        play(FedAvg(local=LOCAL), fed, rounds=1)


def test_what_has_no_name_stays_at_home():
    """A model that another process could not build is trained in this one."""
    fed = engine(2, replace(tiny_model(), name="mlp"))  # the name alone does not make it one that is registered
    play(FedAvg(local=LOCAL), fed, rounds=1)
    assert not fed.crews


def test_small_work_starts_no_process(monkeypatch):
    """Starting workers costs seconds: it must pay."""
    monkeypatch.setattr(simulator, "WORTH", 5.0)
    fed = engine(2)
    play(FedAvg(local=LOCAL), fed, rounds=1)
    assert not fed.crews
    assert np.isfinite(fed.seconds["train"])


def test_what_is_sent_arrives():
    """Numbers of any kind and shape, empty ones too; a tensor with two names travels once and arrives under both."""
    model = torch.randn(3, 4)
    values = {"send": {"model": model, "size": torch.tensor(7)}, "keep": {"last": model},
              "none": torch.zeros(0, 2, dtype=torch.int64), "turned": model.T, "flag": torch.tensor([True, False])}
    pipe = io.BytesIO()
    send(pipe, {"round": 3}, values)
    assert pipe.tell() < 2 * model.nbytes + 600
    pipe.seek(0)
    header, received = receive(pipe)
    assert header == {"round": 3}
    sent, arrived = tree.named(values), tree.named(received)
    assert list(sent) == list(arrived)
    assert all(torch.equal(sent[name], arrived[name]) and sent[name].dtype == arrived[name].dtype for name in sent)
    assert receive(pipe) is None


def test_half_an_answer_is_none():
    """The other end died while it wrote."""
    pipe = io.BytesIO()
    send(pipe, {}, {"model": torch.zeros(10)})
    assert receive(io.BytesIO(pipe.getvalue()[:-1])) is None


def test_training_leaves_the_model_that_was_sent_alone():
    """Steps write over what they carry, never over what the server holds or another client is sent."""
    fed = engine(1)
    state = FedAvg(local=LOCAL).init(fed, SEED)
    before = tree.flat(state.models).clone()
    FedAvg(local=LOCAL).round(fed, state, Cohort(torch.arange(len(fed.names)), 0))
    assert torch.equal(tree.flat(state.models), before)


def test_memory_is_flat_over_rounds():
    """After a few rounds as many tensors are alive as after many: nothing is kept that is not read again."""
    fed = engine(1)
    play(FedAvg(local=LOCAL), fed, rounds=3)
    counts = []
    for rounds in (3, 12):
        play(FedAvg(local=LOCAL), fed, rounds=rounds)
        gc.collect()
        counts.append(sum(1 for thing in gc.get_objects() if type(thing) is torch.Tensor))
    assert counts[0] == counts[1]
