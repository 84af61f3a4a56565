"""A server that asks for anything: mutated requests to a node, of which none crosses its policy and none hangs it."""

import json
import logging
import random
import time
from collections import Counter

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, MetricRecord, RecordDict
from helpers import SHAPE, tiny_model

from umbel.algorithms import FLAG, IFCA, PACFL, FedAvg, FedSoft, Local, Scaffold
from umbel.data.clients import Pool, Population
from umbel.federation.tasks import TASKS, Loop
from umbel.flower import audit
from umbel.flower.client import Site, node_app
from umbel.flower.inprocess import InProcessFlower, InProcessGrid
from umbel.flower.policy import TELLS, Policy
from umbel.flower.wire import WORDS
from umbel.runs import evaluate
from umbel.runs.run import rounds

POLICY = Policy(tasks=tuple(sorted({"train", "controlled_train", "score", "class_vectors", "principal_vectors",
                                    "class_counts", "raw_parts", "losses", "votes", "fine_tune", "remembered",
                                    "distinct_counts"})),
                counts=False, most_epochs=5, most_steps=60, most_jobs=3, most_drawn=500, least_rows_per_part=3)
RARE = 2
SECRET = np.random.default_rng(3).normal(size=(1, 9)).astype(np.float32)  # the one row of a class
LONGEST = 5.0  # seconds that a request may take: three jobs of 60 steps of a tiny model take a tenth
HOSTILE = (-1, 0, 1, 2, 7, 33, 1024, 2**31, 2**63, 2**70, 10**40, 0.5, -1e308, True, None, "", "train", "test", "fit",
           "validation", "x" * 5000, "../../etc", "\x00", [], [1], [1, 1, 1], [2, 2, 2], ["fine_tune"], ["remembered"],
           ["train", "train"], ["os.system"], {}, {"rank": 33}, [[[[]]]])


def one_site():
    """A client with 40 rows of two classes and one row of a third."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(41 + 12, *SHAPE)).astype(np.float32)
    x[40] = SECRET.reshape(SHAPE)
    y = np.arange(len(x)) % 2
    y[40] = RARE
    return Population(Pool(x, y), [np.arange(41)], [np.arange(41, 53)], np.zeros(1, int), 3, ["c000"])


def real_requests():
    """What servers ask a site that allows it: the messages of a few methods."""
    local = Local(lr=0.1, momentum=0.0, epochs=2, batch=10)
    asked = []
    for method in (FedAvg(local=local), Scaffold(local=local), IFCA(local=local, clusters=2), FedSoft(local=local),
                   PACFL(cut="gap", angle="smallest", local=local), PACFL(local=local),
                   FLAG(gradient_epochs=2, cut="count", clusters=1, local=local)):
        people = one_site()
        both = Population(people.pool, people.train * 2, people.test * 2, np.zeros(2, int), 3, ["c000", "c001"])
        fed = InProcessFlower(tiny_model(), both, 0)
        for done in rounds(method, fed, rounds=1, fine_tune=0):
            last = done.state
        evaluate.current(fed, method, last, 1)
        asked += [push[0] for push in fed.grid.pushed]
    return asked


def mutated_words(rng, words):
    """The words of a call with one or more of them changed."""
    about = json.loads(words["about"])
    for _ in range(rng.choice((1, 1, 2, 3))):
        kind = rng.randrange(9)
        if kind == 8:
            about["options"] |= rng.choice(({"rank": rng.choice((0, 5, 6, 32))}, {"sizes": [rng.randrange(5)] * 3}))
        elif kind == 0:
            about["task"] = rng.choice(sorted(TASKS))
        elif kind == 1:
            about["work"][rng.randrange(4)] = rng.choice(HOSTILE)
        elif kind == 2:
            about["options"][rng.choice(("rank", "sizes", "become", "k", "share", "signature", "lr", "send", "keep",
                                         "only", "momentum", "deal", "whatever"))] = rng.choice(HOSTILE)
        elif kind == 3:
            about[rng.choice(sorted(about))] = rng.choice(HOSTILE)
            if not isinstance(about.get("options"), dict) or not isinstance(about.get("work"), list) or \
                    len(about["work"]) != 4:
                break
        elif kind == 4:
            about["options"]["become"] = [rng.choice(sorted(TASKS)) for _ in range(rng.randrange(1, 4))]
        elif kind == 5:
            about["work"] = [rng.choice((0, 1, 5, 6)), rng.choice((0, 1, 60, 61)), rng.choice((0, 1, 10, 100)),
                             rng.choice(("train", "fit", "validation", "test"))]
        elif kind == 6:
            about["jobs"] = rng.choice((0, 1, 2, 3, 4, -1, 10**9))
        else:
            about["round"], about["now"] = rng.choice(HOSTILE), rng.choice((0, 1, -1, 2**40))
    words["about"] = json.dumps(about)


def mutated(rng, message):
    """A copy of a request with something wrong, at any place."""
    content = RecordDict({name: part for name, part in message.content.items() if name != WORDS})
    words = ConfigRecord(dict(message.content[WORDS]))
    content[WORDS] = words
    kind = rng.randrange(10)
    if kind < 6 and "about" in words:
        mutated_words(rng, words)
    elif kind == 6:
        text = bytearray(str(words.get("about", "{}")).encode())
        for _ in range(rng.randrange(1, 4)):
            text[rng.randrange(len(text))] = rng.randrange(32, 127)
        words["about"] = text.decode()
    elif kind == 7:
        words[rng.choice(("run", "seed", "fingerprint", "method", "about", "call", "plan"))] = rng.choice(
            ("", "..", 7, -1, 2**62, 1.5, True, b"x", [1], "null", "[]", '{"rank": 33}', "{" * 5000))
    elif kind == 8 and len(content.array_records):
        part = rng.choice(sorted(content.array_records))
        values = ArrayRecord(dict(content[part]))
        name = rng.choice(sorted(values))
        old = values[name]
        values[name] = rng.choice((
            Array(np.full(old.shape, np.nan, "f4")), Array(np.zeros((0,), "f4")), Array(np.zeros((3, 3), "f4")),
            Array(old.dtype, (2**40,), old.stype, old.data), Array(old.dtype, old.shape, "pickle", old.data),
            Array(old.dtype, old.shape, old.stype, old.data[:-3]), Array(np.full(old.shape, 1e30, "f4"))))
        content[part] = values
    else:
        name = rng.choice([*content, "shared.model", "0.model", "words2"])
        if name in content and rng.random() < 0.5:
            del content[name]
        else:
            content[name] = rng.choice((ArrayRecord(), ConfigRecord({"a": 1}), MetricRecord({"a": 1})))
    message.__dict__["_content"] = content
    return message


def within(about, answers):
    """Whether what left is what the policy allows, told from the request and the answer alone."""
    facts = json.loads(about)
    (epochs, steps, batch, kind), task = facts["work"], facts["task"]
    names = [task, *facts["options"].get("become", ())]
    training = [name for name in names if isinstance(TASKS[name], Loop)]
    assert set(names) <= set(POLICY.tasks)
    assert task not in (*TELLS["counts"], *TELLS["kept_models"])
    assert kind in ("train", "fit") or (task not in training and (kind != "test" or task == "score"))
    assert facts["jobs"] <= POLICY.most_jobs
    assert len(answers) == facts["jobs"]
    if training:
        assert steps or epochs <= POLICY.most_epochs
        assert len(training) * facts["jobs"] * (steps or epochs * -(-36 // (batch or 41))) <= POLICY.most_steps
    if task in training and steps:
        assert steps * (batch or 41) >= POLICY.least_rows
    assert kind != "validation"  # four rows
    for answer in answers.values():
        leaves = {name: array.numpy() for name, array in answer.items()}
        assert leaves.get("size", POLICY.least_rows) >= POLICY.least_rows
        assert RARE not in leaves.get("basis_class", ())
        assert RARE not in leaves.get("part_kind", ())
        assert len(leaves.get("basis", ())) <= POLICY.most_rank * 2
        for leaf in leaves.values():
            if leaf.shape[-1:] == (9,) and task not in training:
                lengths = np.linalg.norm(leaf, axis=-1, keepdims=True)
                assert np.abs(leaf @ SECRET.T / np.maximum(lengths, 1e-9)).max() < 0.99 * np.linalg.norm(SECRET)


@pytest.mark.parametrize(("seed", "count"), [(0, 200), pytest.param(1, 1000, marks=pytest.mark.slow)])
def test_no_mutated_request_crosses_a_policy(seed, count, tmp_path, caplog):
    """Each is answered within the policy, or refused in a sentence, in time; and each has its line in the log."""
    caplog.set_level(logging.CRITICAL, logger="flwr")
    log = tmp_path / "log.jsonl"
    site = Site(one_site(), tiny_model(), tmp_path / "memory", durable=False, policy=POLICY, audit=log)
    app, rng, ended = node_app(lambda _: site), random.Random(seed), Counter()
    pristine = [(message, message.content) for message in real_requests()]
    InProcessGrid(app)
    for _ in range(count):
        message, content = rng.choice(pristine)
        message.__dict__["_content"] = content
        asked, start = mutated(rng, message), time.perf_counter()
        reply = app(asked, Context(1, 1, {}, RecordDict(), {}))
        assert time.perf_counter() - start < LONGEST
        words = dict(reply.content[WORDS])
        ended["refused" if "refused" in words else "silent" if "silent" in words else "answered"] += 1
        if {"refused", "silent"} & words.keys():
            assert not reply.content.array_records
        elif asked.metadata.message_type == "train":
            within(asked.content[WORDS]["about"], reply.content.array_records)
    assert sum(1 for _ in audit.read(log)) == count
    assert min(ended["refused"], ended["answered"]) > count / 20
