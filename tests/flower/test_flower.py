"""Flower in process: who is believed, how long is waited, what travels, what survives. No process, no socket."""

import logging
import random
import re
from dataclasses import replace
from io import BytesIO
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, MetricRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from helpers import LOCAL, SEED, SIZES, TRUTH, gap, models_by_name, play, tiny_model, tiny_population

from umbel import tree
from umbel.algorithms import FLAG, PACFL, FedAvg, Oracle, Scaffold
from umbel.clustering.signatures import class_vectors, principal_vectors
from umbel.data.clients import Work
from umbel.engines import LoopEngine
from umbel.errors import UmbelError
from umbel.federation import ledger
from umbel.federation.door import Cohort, NobodyAnswered
from umbel.federation.scoring import score
from umbel.federation.tasks import TASKS
from umbel.federation.training import train
from umbel.flower import server
from umbel.flower.client import DiskDiary
from umbel.flower.inprocess import InProcessFlower
from umbel.flower.policy import OPEN
from umbel.flower.server import Patience
from umbel.flower.wire import WORDS, digest
from umbel.runs.run import rounds
from umbel.runs.session import run
from umbel.tree import Held

EVERYBODY = torch.arange(len(SIZES))


@pytest.fixture(autouse=True)
def _quiet(caplog):
    """Flower's logger tells a terminal; tests read it instead."""
    caplog.set_level(logging.INFO, logger="flwr")


def flower(policy=OPEN, **patience):
    return InProcessFlower(tiny_model(), tiny_population(), SEED, patience=Patience(**patience), policy=policy)


def node(fed, name):
    fed.nodes or fed.arrive(0)
    return fed.nodes[name]


def trained(fed, ids=EVERYBODY, round=0):
    return fed.map(train, Cohort(torch.as_tensor(ids), round), work=LOCAL.work, shared={"model": fed.net.init(0)},
                   **LOCAL.at(0))


# What travels ---------------------------------------------------------------------------------------------------------


def test_a_round_is_one_push_and_each_model_travels_once():
    """Six clients of two clusters: one push of six messages, in which two records of models are shared."""
    fed = flower()
    state = play(Oracle(TRUTH, local=LOCAL), fed, rounds=1)
    pushes = [push for push in fed.grid.pushed if push[0].metadata.message_type == "train"]
    assert [len(push) for push in pushes] == [6]
    records = [message.content["0.model"] for message in pushes[0]]
    assert len({id(record) for record in records}) == 2
    stored = {key: len(each.deflate()) for message in pushes[0] for key, each in get_all_nested_objects(message).items()
              if type(each).__name__ == "ArrayChunk"}
    layers = len(state.models)
    assert len(stored) == layers  # both models are still the first one: content is what counts


@pytest.mark.parametrize("method", [FedAvg(local=LOCAL), Scaffold(local=replace(LOCAL, momentum=0.0)),
                                    PACFL(local=LOCAL), FLAG(gradient_epochs=2, local=LOCAL)],
                         ids=lambda method: type(method).__name__)
def test_the_bill_is_what_was_serialised(method):
    """Bytes of numbers, exactly; Flower's framing on top is at most 1,024 a message and 640 an array."""
    fed = flower()
    replies = []
    fed.grid.tamper = lambda reply: replies.append(reply) or reply
    play(method, fed, rounds=2)
    asked = [message for push in fed.grid.pushed for message in push]
    billed = ledger.summary(ledger.totals(fed.ledger.lines))
    for messages, amount in ((asked, billed["down"]), (replies, billed["up"])):
        arrays = [array for message in messages for held in message.content.array_records.values()
                  for array in held.values()]
        assert sum(len(array.data) - 128 for array in arrays) == amount  # numpy's header has 128
        wire = sum(len(each.deflate()) for message in messages for each in get_all_nested_objects(message).values())
        assert amount < wire <= amount + 1024 * len(messages) + 640 * len(arrays)


def test_a_client_that_stands_twice_in_a_cohort_gets_one_message():
    """FLAG's sweep asks a client once for every partition: in one message, with one answer for each."""
    fed = flower()
    models = tree.stack([fed.net.init(k) for k in range(3)])
    ids, holds = torch.tensor([0, 4, 0, 4, 0]), torch.tensor([0, 0, 1, 2, 2])
    call = {"work": Work(epochs=1, rows="fit"), "each": {"model": Held(models, holds)}, "keep": False}
    heard = fed.map(train, Cohort(ids, 0, "sweep"), **call, **LOCAL.at(0))
    assert [len(push) for push in fed.grid.pushed[1:]] == [2]
    loop = LoopEngine(tiny_model(), tiny_population(), SEED)
    same = loop.map(train, Cohort(ids, 0, "sweep"), **call, **LOCAL.at(0))
    assert torch.equal(heard.ids, same.ids)
    assert gap(heard.answers["model"], same.answers["model"]) == 0


def test_flag_sweeps_on_flower():
    """The cut by a sweep of short federations is the simulator's."""
    method = FLAG(gradient_epochs=2, cut="sweep", local=LOCAL)
    found = [play(method, fed, rounds=1) for fed in (flower(), LoopEngine(tiny_model(), tiny_population(), SEED))]
    assert torch.equal(found[0].labels, found[1].labels)
    assert torch.equal(found[0].evidence["curve"], found[1].evidence["curve"])


def test_a_type_that_cannot_travel_is_said():
    """bfloat16 has no numpy type."""
    from umbel.flower.wire import record

    with pytest.raises(ValueError, match=r"int16, uint8\. Got torch\.bfloat16 for 'model/a'"):
        record({"model": {"a": torch.zeros(1, dtype=torch.bfloat16)}})


# How long is waited ---------------------------------------------------------------------------------------------------


def test_a_dead_node_costs_one_deadline():
    """The round ends by its deadline with the others, and who was late is not asked again in it."""
    fed = flower(deadline=60.0)
    fed.grid.dead.add(node(fed, "c001"))
    heard = trained(fed)
    assert heard.ids.tolist() == [0, 2, 3, 4, 5]
    assert heard.lost == {"c001": "late"}
    assert 60 <= fed.grid.time < 61
    again = fed.map(score, Cohort(EVERYBODY, 1, "evaluate"), shared={"model": fed.net.init(0)})
    assert again.lost == {"c001": "late"}
    assert fed.grid.time < 61
    fed.arrive(1)  # the next round gives it another chance
    fed.grid.dead.clear()
    assert trained(fed, round=1).lost == {}


def test_a_straggler_is_given_a_grace_after_the_quorum():
    """Four of six are enough: a fifth that comes within the grace counts, the sixth does not."""
    fed = flower(deadline=600.0, quorum=0.6, grace=10.0)
    fed.grid.delay |= {node(fed, "c002"): 8.0, node(fed, "c003"): 100.0}
    heard = trained(fed)
    assert heard.ids.tolist() == [0, 1, 2, 4, 5]
    assert heard.lost == {"c003": "late"}
    assert 10 <= fed.grid.time < 11


def test_an_answer_to_an_old_call_is_not_taken_for_a_new_one():
    """What comes after its deadline stays where it is; the next round hears the next answer."""
    fed = flower(deadline=5.0)
    fed.grid.delay[node(fed, "c000")] = 7.0
    assert trained(fed).lost == {"c000": "late"}
    fed.grid.delay.clear()
    fed.arrive(1)
    assert trained(fed, round=1).lost == {}


def test_a_node_that_has_gone_is_an_error_by_its_message():
    """The error names no node: the client is found by the message that it answers."""
    fed = flower()
    gone = node(fed, "c004")
    del fed.grid.contexts[gone]
    heard = trained(fed)
    assert heard.lost == {"c004": "gave no answer: error 5, Node Unavailable"}
    fed.arrive(1)
    assert fed.online.tolist() == [True] * 4 + [False, True]


def test_nobody_left_is_a_lost_round_and_three_end_the_run():
    """As on every engine: the state stays, and the reason is in the error."""
    fed = flower(deadline=1.0)
    fed.arrive(0)
    fed.grid.dead |= set(fed.grid.contexts)
    with pytest.raises(NobodyAnswered, match="late"):
        trained(fed)
    with pytest.raises(ValueError, match="3 rounds in a row were lost"):
        list(rounds(FedAvg(local=LOCAL), fed, rounds=5))


# Who is let in --------------------------------------------------------------------------------------------------------


def introduced(change, caplog):
    """A federation in which node c001 introduces itself with changed words, and what is logged."""
    fed = flower()

    def tamper(reply):
        words = reply.content[WORDS]
        if words.get("name") == "c001":
            for key, value in change.items():
                words[key] = value
        return reply

    fed.grid.tamper = tamper
    fed.arrive(0)
    return fed, caplog.text


@pytest.mark.parametrize(("change", "sentence"), [
    ({"name": "c000"}, "calls itself c000, a name that another node uses"),
    ({"name": "../../etc"}, "has no proper name"),
    ({"name": ""}, "has no proper name"),
    ({"version": "0.0.1"}, "calls itself c001, and has umbel 0.0.1, not "),
    ({"fingerprint": "0" * 16}, "calls itself c001, and has another model than the server"),
    ({"train": 0}, "does not say what it has"),
    ({"train": "many"}, "does not say what it has"),
    ({"policy": 7}, "does not say what it has"),
    ({"call": "another"}, "answers another call"),
    ({"refused": "no"}, "refused: no"),
])  # fmt: skip
def test_a_node_that_does_not_fit_is_refused_in_a_sentence(change, sentence, caplog):
    """Names, versions and models are compared before anything is asked; the others go on."""
    fed, said = introduced(change, caplog)
    assert sentence in said
    assert fed.online.sum() == 5
    assert len(trained(fed, fed.online.nonzero().flatten()).ids) == 5


def test_a_refused_node_is_asked_again_later():
    """1, 2, 4 ... rounds later: a site that was mended comes in without a restart of the run."""
    fed, _ = introduced({"version": "0"}, SimpleNamespace(text=""))
    asked = []
    for index in range(1, 8):
        before = len(fed.grid.pushed)
        fed.arrive(index)
        asked += [index] * (len(fed.grid.pushed) - before)
    assert asked == [1, 3, 7]
    fed.grid.tamper = lambda reply: reply
    fed.arrive(15)
    assert bool(fed.online.all())


def test_a_registered_name_must_be_the_one_told(monkeypatch, caplog):
    """Whoever registers a key may say whose it is; then nobody else can use it under another name."""
    fed = flower()
    names = {number: f"c{number - 1000:03d}" for number in fed.grid.contexts} | {1001: "somebody-else"}
    monkeypatch.setattr(fed.grid, "get_nodes", lambda: [SimpleNamespace(node_id=number, name=name)
                                                       for number, name in names.items()])
    fed.arrive(0)
    assert fed.online.tolist() == [True, False, True, True, True, True]
    assert "calls itself c001, but its key is registered as somebody-else" in caplog.text


def test_a_late_node_is_admitted_and_a_leaver_keeps_its_membership():
    """A node without a signature is placed between rounds; one that goes and comes back is where it was."""
    fed = flower()
    context = fed.grid.contexts.pop(1005)
    seen = {}
    for done in rounds(PACFL(local=LOCAL), fed, rounds=5):
        seen[done.index] = done.state.labels.tolist()
        if done.index == 0:
            fed.grid.contexts[1005] = context
        if done.index == 1:
            gone = fed.grid.contexts.pop(1002)
        if done.index == 2:
            fed.grid.contexts[1002] = gone
    assert seen[0][5] == -1
    assert seen[1] == seen[2] == seen[4] == list(TRUTH)


# What is believed -----------------------------------------------------------------------------------------------------


def array(values, **changes):
    made = Array(np.asarray(values))
    return Array(*[changes.get(name, getattr(made, name)) for name in ("dtype", "shape", "stype", "data")])


def layer(reply):
    """The first layer's weights in an answer."""
    return reply.content["0"]["model/1.weight"]


def put(name, make):
    """Replace one array; the digest is made good, so that the array itself must be the reason."""
    def change(reply):
        reply.content["0"][name] = make(reply.content["0"].get(name))
        reply.content[WORDS]["digest"] = digest(reply.content)
    return change


def drop(reply):
    del reply.content["0"]["model/1.weight"]


def say(**changed):
    return lambda reply: [reply.content[WORDS].__setitem__(key, value) for key, value in changed.items()]


def flip(reply):
    held = layer(reply)
    reply.content["0"]["model/1.weight"] = Array(held.dtype, held.shape, held.stype, held.data[:-1] + b"\x3f")


def lie(reply):
    """A header that promises an array of a terabyte."""
    stream = BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "<f4", "fortran_order": False, "shape": (2**38,)})
    put("model/1.weight", lambda _: Array("float32", (2**38,), "numpy.ndarray", stream.getvalue()))(reply)


def error(reply):
    reply.__dict__ |= {"_content": None, "_error": Error(2, "\x1b[31mboom")}


BAD = {
    "another shape": (put("model/1.weight", lambda _: array(np.zeros((9, 8), "f4"))), "has shape"),
    "another type": (put("model/1.weight", lambda _: array(np.zeros((8, 9), "f8"))), "at most|has shape"),
    "half numbers": (put("model/1.weight", lambda _: array(np.zeros((8, 9), "f2"))), "contradicts itself"),
    "objects": (put("model/1.weight", lambda _: Array("object", (1,), "numpy.ndarray", b"\x93NUMPY\x01\x00")),
                "cannot be read"),
    "a missing array": (drop, "other names than promised"),
    "an extra array": (put("model/extra", lambda _: array(np.zeros(1, "f4"))), "other names than promised"),
    "not a number": (put("model/1.weight", lambda _: array(np.full((8, 9), np.nan, "f4"))), "not finite"),
    "infinity": (put("model/1.weight", lambda _: array(np.full((8, 9), np.inf, "f4"))), "not finite"),
    "a negative count": (put("size", lambda _: array(np.array(-5))), "size is below 0"),
    "somebody else's name": (say(name="c003"), "answers under the name c003"),
    "another round": (say(call="run/train/train/7/3"), "answers another call"),
    "a task that does not exist": (say(call="run/rm -rf/train/0/1"), "answers another call"),
    "200 MB": (put("model/1.weight", lambda _: Array("float32", (50_000_000,), "numpy.ndarray", bytes(200_000_000))),
               "200,000,000 bytes for 'model/1.weight', at most 544 are due"),
    "a header that lies": (lie, "more or fewer numbers"),
    "one other bit": (flip, "was changed on its way"),
    "half an array": (put("size", lambda old: Array(old.dtype, old.shape, old.stype, old.data[:-4])), "more or fewer"),
    "no words": (lambda reply: reply.content.__delitem__(WORDS), "has no words"),
    "words of another kind": (lambda reply: reply.content.__setitem__(WORDS, MetricRecord({"a": 1})), "has no words"),
    "a name that is a number": (say(name=7), "answers under the name 7"),
    "a second answer": (lambda reply: reply.content.__setitem__("1", ArrayRecord()), "other parts than promised"),
    "an error": (error, r"error 2, \?\[31mboom"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_answer_is_refused_and_the_round_goes_on(kind, caplog):
    """Rejected, logged with the client's name and the reason, counted in the result; the others are heard."""
    change, reason = BAD[kind]
    fed = flower()

    def tamper(reply):
        words = reply.content[WORDS]
        if words.get("name") == "c001" and "model/1.weight" in reply.content.get("0", {}):
            change(reply)
        return reply

    fed.grid.tamper = tamper
    result = run(FedAvg(local=LOCAL), fed, rounds=1, fine_tune=0)
    assert [record["trained"] for record in result.records] == [[], [0, 2, 3, 4, 5]]
    assert re.search(reason, result.records[1]["lost"]["c001"][0])
    assert sum(result.info["lost"].values()) == 1
    assert re.search(f"Lost: c001: .*({reason})", caplog.text)


def test_a_node_does_not_do_what_it_does_not_know():
    """A task is looked up by name among those that the node has; nothing is imported from the wire."""
    fed = flower()
    strange = replace(train, name="os.system")
    with pytest.raises(NobodyAnswered, match=r"There is no task 'os\.system' at this node"):
        fed.map(strange, Cohort(EVERYBODY, 0), work=LOCAL.work, shared={"model": fed.net.init(0)}, **LOCAL.at(0))


def test_a_run_cannot_choose_where_a_node_writes():
    """The name of a run is a folder at the node, and no path."""
    fed = flower()
    fed.run = "../../home"
    with pytest.raises(NobodyAnswered, match="The name of a run is letters"):
        trained(fed)


@pytest.mark.parametrize(("work", "options", "said"), [
    (Work(steps=3_000_000), {}, r"at most 1,048,576 steps\. Asked for were 3,000,000"),
    (Work(epochs=2**40, batch=5), {}, "at most 10,000 epochs"),
    (Work(epochs=10_000, batch=1), {}, "at most 50,000 steps"),
    (Work(epochs=1, batch=2**26), {}, r"at most 33,554,432 rows in one job\. Asked for were 67,108,864"),
    (Work(epochs=-1), {}, "no work below 0"),
])
def test_a_node_does_not_work_for_days(work, options, said, caplog, monkeypatch):
    """What no method needs is refused in a sentence that reaches the server's log, before memory is taken for it."""
    fed = flower(replace(OPEN, most_steps=50_000) if said.endswith("50,000 steps") else OPEN)
    monkeypatch.setattr(Work, "checked", lambda work: work)  # a server that asks for whatever it likes
    with pytest.raises(NobodyAnswered, match=said):
        fed.map(train, Cohort(EVERYBODY, 0), work=work, shared={"model": fed.net.init(0)}, **LOCAL.at(0), **options)
    assert re.search(f"Lost: c001: refused: .*{said}", caplog.text)


def test_steps_of_a_call_are_counted_before_the_first():
    """Twelve are asked for, and five allowed: nobody begins."""
    fed = flower(replace(OPEN, most_steps=5))
    with pytest.raises(NobodyAnswered, match=r"at most 5 steps\. Asked for were"):
        fed.map(train, Cohort(EVERYBODY, 0), work=Work(steps=12), shared={"model": fed.net.init(0)}, **LOCAL.at(0))


def test_a_node_does_not_take_a_million_jobs(monkeypatch):
    """Three million of them once hung a node before it looked at the first."""
    fed = flower()
    words_of_a_call = server.asked
    monkeypatch.setattr(server, "asked", lambda call, jobs: words_of_a_call(call, 3_000_000))
    with pytest.raises(NobodyAnswered, match=r"at most 1,024 jobs\. Asked for were 3,000,000"):
        trained(fed)


@pytest.mark.parametrize("engine", [flower, lambda: LoopEngine(tiny_model(), tiny_population(), SEED)])
def test_a_client_describes_itself_by_few_vectors(engine):
    """With as many vectors as there are rows, these can be rebuilt: on every engine the client says no."""
    fed = engine()
    said = r"(by 1 to 32 vectors, of each class|at most 32 vectors).*\. Asked for were 33"
    for task in (class_vectors, principal_vectors):
        with pytest.raises((UmbelError, NobodyAnswered), match=said):
            fed.map(task, Cohort(EVERYBODY, 0, "signature"), rank=33)
        assert len(fed.map(task, Cohort(EVERYBODY, 0, "signature"), rank=32).ids) == len(SIZES)
    with pytest.raises(UmbelError, match=r"The 'rank' of pacfl must be at least 1 and at most 32\. Got 33 instead"):
        PACFL(rank=33)


def test_what_fails_at_a_node_is_told_there_alone(monkeypatch, caplog):
    """The server learns that a task failed, not what was in the data."""
    fed = flower()

    def fail(*_, **__):
        raise RuntimeError("patient 17 has no label")

    monkeypatch.setitem(TASKS, "train", replace(train, finish=fail))
    with pytest.raises(NobodyAnswered, match="failed at the node with RuntimeError") as caught:
        trained(fed)
    assert "patient" not in str(caught.value.lost)
    assert "patient 17" in caplog.text


def mutations(rng, reply):
    """One random change to a reply, at any place."""
    content = reply.content
    record = content["0"]
    name = rng.choice(sorted(record))
    old = record[name]
    data = bytearray(old.data)
    kind = rng.randrange(9)
    if kind == 0:  # a byte
        data[rng.randrange(len(data))] ^= rng.randrange(1, 256)
        record[name] = Array(old.dtype, old.shape, old.stype, bytes(data))
    elif kind == 1:  # an end
        cut = rng.randrange(len(data))
        record[name] = Array(old.dtype, old.shape, old.stype, bytes(data[:cut]))
    elif kind == 2:  # more
        record[name] = Array(old.dtype, old.shape, old.stype, bytes(data) + rng.randbytes(rng.randrange(1, 99)))
    elif kind == 3:  # noise
        record[name] = Array(old.dtype, old.shape, old.stype, rng.randbytes(len(data)))
    elif kind == 4:  # what it says of itself
        said = rng.choice([("float16", old.shape, old.stype), (old.dtype, (*old.shape, 1), old.stype),
                           (old.dtype, old.shape, "pickle"), ("", (), ""), (old.dtype, (-1,), old.stype)])
        record[name] = Array(*said, old.data)
    elif kind == 5:  # another name
        del record[name]
        record[rng.choice(["", "model", "model/", f"{name}/x", "\x00", "size/size"])] = old
    elif kind == 6:  # a word
        content[WORDS][rng.choice(["call", "name", "digest"])] = rng.choice(["", 7, 1.5, True, b"x", ["a"], "c000"])
    elif kind == 7:  # a part
        content[rng.choice(["1", "", "shared.model", "words2"])] = rng.choice([ArrayRecord(), ConfigRecord(), record])
    else:
        del content[rng.choice(["0", WORDS])]
    return reply


def test_a_thousand_mutated_replies(caplog):
    """No crash, and none is accepted."""
    caplog.set_level(logging.CRITICAL, logger="flwr")
    rng = random.Random(0)
    fed = flower()
    fed.arrive(0)
    accepted, refused = [], 0
    model = fed.net.init(0)
    fed.grid.tamper = lambda reply: mutations(rng, reply)
    index = torch.full((1,), fed.names.index("c002"))  # the smallest client
    for k in range(1000):
        try:
            accepted.append(fed.map(train, Cohort(index, k), work=Work(steps=1), shared={"model": model}, keep=False,
                                    **LOCAL.at(0)))
        except NobodyAnswered:
            refused += 1
    assert (accepted, refused) == ([], 1000)


# What survives --------------------------------------------------------------------------------------------------------


def test_memory_is_on_disk_in_two_generations(tmp_path):
    """Asked for a round again, a node reads what it read before; another run is another memory."""
    diary = DiskDiary(tmp_path / "run")
    for index in range(4):
        diary.write("site", index, {"last": {"w": torch.tensor([float(index)])}})
    assert sorted(path.name for path in (tmp_path / "run" / "site").iterdir()) == ["2.safetensors", "3.safetensors"]
    fresh = DiskDiary(tmp_path / "run")
    assert float(fresh.read("site", 3)["last"]["w"]) == 2  # as when round 3 was first asked for
    assert float(fresh.read("site", 4)["last"]["w"]) == 3
    assert DiskDiary(tmp_path / "other").read("site", 4) == {}


def test_memory_outlives_the_nodes():
    """A node that starts afresh remembers: SCAFFOLD's control variates are the same as without the restart."""
    method = Scaffold(local=replace(LOCAL, momentum=0.0))
    fed, loop = flower(), LoopEngine(tiny_model(), tiny_population(), SEED)
    state = play(method, fed, rounds=2)
    for context in fed.grid.contexts.values():
        context.state = RecordDict()
    for index in (2, 2):  # and a round that is done twice, since the server died after it, changes nothing
        after = method.round(fed, state, Cohort(EVERYBODY, index))
    assert gap(after.models, play(method, loop).models) == 0
    mine, theirs = models_by_name(fed, after), models_by_name(loop, after)
    assert all(gap(mine[name], theirs[name]) == 0 for name in mine)


def test_signatures_do_not_depend_on_when_they_are_asked_for():
    """The same client, the same vectors, in any round and phase."""
    fed = flower()
    first, later = (fed.map(class_vectors, Cohort(EVERYBODY, index, phase), rank=2).answers["basis"].values
                    for index, phase in ((0, "signature"), (7, "admit")))
    assert torch.equal(first, later)


def test_nothing_is_waited_for_by_the_clock():
    """In process, time is counted: these tests sleep nowhere."""
    assert server.Clock()._fields == ("now", "sleep")
    assert flower().clock.sleep is not server.Clock().sleep
