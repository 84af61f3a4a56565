"""Worker processes on a CPU: the same bits, whoever does the work."""

import gc
import io
import resource
import signal
import subprocess
import tempfile
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import LOCAL, SEED, TRUTH, gap, play, tiny_model, tiny_population

from umbel import tree
from umbel.algorithms import FedAvg, FedProx, Oracle, Solo
from umbel.data.clients import Work
from umbel.engines import Simulator, crew, simulator
from umbel.engines.codec import receive, send
from umbel.engines.crew import AHEAD, Lost
from umbel.errors import UmbelError
from umbel.federation.door import Call, Cohort, NobodyAnswered
from umbel.federation.training import train
from umbel.nets.wrap import build
from umbel.processes import start


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
    first = fed.crews[0]
    processes = [worker.process for worker in first.workers]
    fed.close()
    assert all(process.poll() is not None for process in processes)
    assert not first.scratch.path.exists()
    play(FedAvg(local=LOCAL), fed, rounds=1)  # and a new crew comes when there is work again
    assert fed.crews[0] is not first
    fed.close()


def test_a_lost_worker_is_followed_by_another():
    """Killed as where memory runs out, whatever it does: its job is done again, and the bits are the same."""
    alone, shared = engine(1), engine(2)
    lost = []

    def kill(phase, done, asked):
        if done == 2 and len(lost) < 2:
            lost.append(shared.crews[0].workers[0].process)
            lost[-1].kill()

    with shared.watched(kill):
        a, b = play(FedAvg(local=LOCAL), alone), play(FedAvg(local=LOCAL), shared)
    assert torch.equal(tree.flat(a.models), tree.flat(b.models))
    assert [process.returncode for process in lost] == [-signal.SIGKILL] * 2
    assert shared.crews[0].workers[0].process not in lost
    shared.close()


def test_who_follows_a_lost_worker_is_sent_everything():
    """What all clients of a call receive, too, though the lost one had it."""
    fed = engine(2)
    play(FedAvg(local=LOCAL), fed, rounds=1)
    worker = fed.crews[0].workers[0]
    job = ({"task": train.name, "client": 2, "round": 0, "phase": "train", "work": list(Work(epochs=1)),
            "options": LOCAL.at(0), "uplinks": "", "now": 0}, {}, {"model": fed.net.init(SEED)})
    worker.has_shared = False
    before = worker.ask(*job)
    worker.process.kill()
    with pytest.raises(Lost, match=r"^was ended by SIGKILL, as where memory runs out$"):
        worker.ask(*job)
    after = worker.ask(*job)
    assert before[0] == after[0] == {}
    assert gap(before[1]["send"]["model"], after[1]["send"]["model"]) == 0
    fed.close()


def test_workers_that_are_lost_again_and_again_end_the_run(monkeypatch):
    """Three for one job; the sentence says how they ended and what to do, and nothing stays behind."""
    started = []

    def start_and_die(folder):
        started.append(folder)
        return start("import os; os.kill(os.getpid(), 9)", stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    monkeypatch.setattr(crew, "_start", start_and_die)
    fed = engine(2)
    with pytest.raises(UmbelError, match=r"^3 worker processes that trained the client '.*' are lost; the last was"
                                         r" ended by SIGKILL, as where memory runs out\. Go on with fewer"):
        play(FedAvg(local=LOCAL), fed, rounds=1)
    assert 4 <= len(started) <= 2 + 2 * 3 * AHEAD
    assert not started[0].exists()
    assert not fed.crews[0].close.alive


@pytest.mark.parametrize(("about", "sentence"), [
    ({"uplinks": "shrink:3"}, "There is no uplink 'shrink'."),
    ({"options": {"epochs": 1}}, "A worker process failed at the client 'c002' (TypeError: "),
])
def test_what_a_worker_raises_is_a_sentence(about, sentence):
    """An UmbelError says its own, anything else where it was; the worker lives on."""
    fed = engine(2)
    play(FedAvg(local=LOCAL), fed, rounds=1)
    worker = fed.crews[0].workers[0]
    header = {"task": train.name, "client": 2, "round": 0, "phase": "train", "work": list(Work(epochs=1)),
              "options": {}, "uplinks": "", "now": 0}
    answer, reply = worker.ask(header | about, {}, {})
    assert answer["complaint"].startswith(sentence)
    assert not reply
    with pytest.raises(UmbelError, match="failed at the client"):
        list(fed.crews[0].perform(Call(train, Cohort(torch.arange(2), 0), Work(epochs=1), {}, {}, {})))
    fed.close()


def test_clients_that_do_not_fit_leave_nothing_behind(tmp_path, monkeypatch):
    """The sentence names the file and says what to do; the folder is removed at once."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, before[1]))
    sentence = r"x\.npy cannot be written: File too large\. Set TMPDIR to a folder .* room, or take --workers 1\.$"
    try:
        with pytest.raises(UmbelError, match=sentence) as refused:
            play(FedAvg(local=LOCAL), engine(2), rounds=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(tmp_path.iterdir())
    assert refused.tb is not None  # which holds whoever could remove it later


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
    assert receive(io.BytesIO(pipe.getvalue()[:20])) is None


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
