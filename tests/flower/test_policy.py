"""What a site allows: its policy, key by key, against a server that asks for more than any method does."""

import logging
import re
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import ALL, CLASSES, LOCAL, SEED, SHAPE, gap, play, tiny_model

from umbel.algorithms import FLAG, PACFL, FedAvg, import_all
from umbel.clustering.parts import raw_parts
from umbel.clustering.signatures import class_counts, class_vectors, principal_vectors
from umbel.data.clients import Pool, Population, Work
from umbel.engines import LoopEngine
from umbel.errors import UmbelError
from umbel.federation import preparing  # noqa: F401 (its tasks)
from umbel.federation.door import Cohort, NobodyAnswered
from umbel.federation.scoring import score
from umbel.federation.tasks import COUNT, TASKS, Leaf, Loop, Plain, Reply, UpTo
from umbel.federation.training import remembered, train
from umbel.federation.uplink import parse
from umbel.flower.inprocess import InProcessFlower
from umbel.flower.policy import OPEN, TELLS, Forbidden, Policy
from umbel.runs.run import rounds

RARE = 2  # the class of which a site has one row
EVERYBODY = torch.arange(4)


@pytest.fixture(autouse=True)
def _quiet(caplog):
    caplog.set_level(logging.INFO, logger="flwr")


def patients(rare=1, copies=1, test=12):
    """Four sites of two groups with 20 rows of two classes each, and `rare` rows of a third, `copies` times."""
    looks = 2 * np.random.default_rng(7).normal(size=(2, CLASSES, *SHAPE))
    xs, ys, train_rows, test_rows, at = [], [], [], [], 0
    for site in range(4):
        for part, y in enumerate((np.arange(40) % 2, np.full(rare, RARE), np.arange(test) % 2)):
            noise = np.random.default_rng([site, part]).normal(size=(len(y), *SHAPE))
            xs += [looks[site % 2][y] + 0.3 * noise] * (copies if part == 1 else 1)
            ys += [y] * (copies if part == 1 else 1)
        held = 40 + rare * copies
        train_rows.append(np.arange(at, at + held))
        test_rows.append(np.arange(at + held, at + held + test))
        at += held + test
    pool = Pool(np.concatenate(xs).astype(np.float32), np.concatenate(ys).astype(np.int64))
    return Population(pool, train_rows, test_rows, np.arange(4) % 2, CLASSES, names=[f"c{i}" for i in range(4)])


def sites(policy=OPEN, **rows):
    return InProcessFlower(tiny_model(), patients(**rows), SEED, policy=policy)


def described(fed, task=class_vectors, **options):
    return fed.map(task, Cohort(EVERYBODY, 0, "signature"), **options)


# The file -------------------------------------------------------------------------------------------------------------


def written(tmp_path, text):
    path = tmp_path / "policy.toml"
    path.write_text(text)
    return path


def test_a_policy_is_read_from_a_file(tmp_path):
    """What it leaves out is as by default, and what it changes is what a server is told."""
    path = written(tmp_path, 'methods = ["fedavg", "pacfl"]\nleast_rows = 20\nscores = false\nuplinks = "clip:2"\n')
    policy = Policy.read(path)
    assert policy == Policy(methods=("fedavg", "pacfl"), least_rows=20, scores=False, uplinks="clip:2")
    assert policy.changed() == {"methods": ("fedavg", "pacfl"), "least_rows": 20, "scores": False, "uplinks": "clip:2"}
    assert Policy.read(written(tmp_path, "")) == Policy()


@pytest.mark.parametrize(("text", "sentence"), [
    ("least_row = 3", "There is no setting of a policy named 'least_row'. Did you mean 'least_rows'?"),
    ("least_rows = 0", "The 'least_rows' of a policy must be at least 1 and at most 2147483647. Got 0 instead."),
    ("least_rows = true", "The 'least_rows' of a policy must be a whole number. Got true instead."),
    ("most_rank = 33", "The 'most_rank' of a policy must be at least 1 and at most 32. Got 33 instead."),
    ("scores = 1", "The 'scores' of a policy must be true or false. Got 1 instead."),
    ("methods = []", "The 'methods' of a policy must be a list of one name or more. Got [] instead."),
    ('methods = "flag"', "The 'methods' of a policy must be a list of one name or more. Got flag instead."),
    ('methods = ["falg"]', "There is no name for 'methods' of a policy like 'falg'. Did you mean 'flag'?"),
    ('tasks = ["trian"]', "There is no name for 'tasks' of a policy like 'trian'. Did you mean 'train'?"),
    ('train_on = ["test"]', "There is no name for 'train_on' of a policy like 'test'."),
    ('uplinks = "clipp:1"', "There is no uplink 'clipp'. Did you mean 'clip'?"),
    ("[limits]\nleast_rows = 3", "There is no setting of a policy named 'limits'."),
    ("least_rows = = 3", "must be TOML. It is not: "),
])  # fmt: skip
def test_a_wrong_policy_is_one_sentence(tmp_path, text, sentence):
    """With the file, the key and the value; no rule is left out in silence."""
    path = written(tmp_path, text)
    with pytest.raises(UmbelError, match=re.escape(sentence)) as caught:
        Policy.read(path)
    assert str(path) in str(caught.value)


def test_the_example_is_the_defaults():
    """Every key is in it, with the value that it has anyway, or as a comment."""
    path = Path(__file__).parents[2] / "examples" / "flower" / "policy.toml"
    assert Policy.read(path) == Policy()
    assert re.findall(r"^(?:# )?(\w+) = ", path.read_text(), re.MULTILINE) == [each.name for each in fields(Policy)]


def test_a_policy_that_is_not_there_is_one_sentence(tmp_path):
    """A site that names a policy never goes without one."""
    with pytest.raises(UmbelError, match=r"The file .*none\.toml cannot be read"):
        Policy.read(tmp_path / "none.toml")


def umbels(task):
    """Whether a task is umbel's own: other tests register theirs."""
    does = task.function if isinstance(task, Plain) else task.each
    return does.__module__.startswith("umbel.")


def test_every_task_is_in_one_kind():
    """A task of umbel's own trains, or tells something that a policy has a key for."""
    import_all()
    own = {name for name, task in TASKS.items() if not isinstance(task, Loop) and umbels(task)}
    told = [name for names in TELLS.values() for name in names]
    assert sorted(told) == sorted(own)
    assert set(TELLS) <= {each.name for each in fields(Policy)}


@pytest.mark.parametrize("name", ALL)
def test_methods_say_what_they_must_be_told(name, monkeypatch):
    """No more than they ask for, and something where they ask for anything."""
    method, asked = ALL[name].make(LOCAL, (0, 1, 0, 1)), set()
    fed = LoopEngine(tiny_model(), patients(), SEED)
    ask = fed.map
    monkeypatch.setattr(fed, "map", lambda task, *rest, **options: asked.add(task.name) or ask(task, *rest, **options))
    play(method, fed, rounds=2)
    told = {kind for kind, tasks in TELLS.items() if asked.intersection(tasks)}
    assert set(method.tells) <= told
    assert bool(method.tells) == bool(told)


# A row does not leave -------------------------------------------------------------------------------------------------


def cosines(vectors, rows):
    """The largest cosine between any of some vectors and any of some rows."""
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return float(np.abs(vectors @ rows.T).max()) if len(vectors) else 0.0


@pytest.mark.parametrize("copies", [1, 12])
@pytest.mark.parametrize("rare", [1, 9])
def test_a_rare_row_does_not_leave_as_a_vector(rare, copies):
    """The vector of a class with one row is that row; by default such a class is left out, and the others are as ever.

    Copies of a row are one row, so that twelve of them do not bring it out either.
    """
    told = {name: described(sites(policy, rare=rare, copies=copies), rank=1).answers
            for name, policy in (("open", OPEN), ("default", Policy()))}
    people = patients(rare=rare, copies=copies)
    for site in range(4):
        rows = people.train[site]
        secret = people.pool.x[rows[people.pool.y[rows] == RARE]].reshape(-1, 9)
        vectors, kinds = ({name: each[key].values[site].numpy() for name, each in told.items()}
                          for key in ("basis", "basis_class"))
        assert kinds["open"].tolist() == [0, 1, RARE]
        assert kinds["default"].tolist() == [0, 1]
        assert np.array_equal(vectors["default"], vectors["open"][:2])
        if rare == 1:
            assert cosines(vectors["open"][2:], secret) == pytest.approx(1, abs=1e-6)
            assert cosines(vectors["default"], secret) < 0.99


def test_ten_different_rows_are_enough():
    """The default is a rule of different rows, and of no more."""
    kinds = described(sites(Policy(), rare=10), rank=1).answers["basis_class"].values
    assert kinds.tolist() == [[0, 1, RARE]] * 4


def test_no_description_knows_a_class_that_is_left_out():
    """Counts and parts neither: a class that is counted and has no vector would tell that it is there."""
    fed = sites(Policy())
    assert described(fed, class_counts).answers["counts"].tolist() == [[20, 20, 0]] * 4
    parts = described(fed, raw_parts, sizes=(2, 2, 1 + 1), deal="random").answers["part_kind"].values
    assert parts.unique().tolist() == [0, 1]
    whole = described(fed, principal_vectors, rank=2).answers
    without = described(sites(rare=0), principal_vectors, rank=2).answers
    assert torch.equal(whole["basis"].values, without["basis"].values)
    assert whole["size"].tolist() == [40] * 4


@pytest.mark.parametrize("method", [PACFL(local=LOCAL), PACFL(cut="gap", per_class=True, local=LOCAL),
                                    FLAG(gradient_epochs=2, local=LOCAL),
                                    FLAG(gradient_epochs=2, cut="gap", signature="embedding", local=LOCAL)])
def test_methods_go_on_without_the_class(method):
    """What leaves is as if the class were not there, and the groups are found."""
    state = play(method, sites(Policy()), rounds=1)
    assert state.labels.tolist() == [0, 1, 0, 1]


def test_a_site_without_a_class_that_is_large_enough_is_not_described():
    """Refused in a sentence, and nothing leaves."""
    with pytest.raises(NobodyAnswered, match=r"lets answers leave that rest on 10 different rows or more.*rest on 0\."):
        described(sites(Policy(least_rows_per_class=21)), rank=1)


# Each key -------------------------------------------------------------------------------------------------------------


def training(fed, work=LOCAL.work, phase="train", **options):
    return fed.map(train, Cohort(EVERYBODY, 0, phase), work=work, shared={"model": fed.net.init(0)},
                   **{**LOCAL.at(0), **options})


def scored(fed, work=None, **options):
    return fed.testing().map(score, Cohort(EVERYBODY, 0, "evaluate"), work=work or Work(rows="test"),
                             shared={"model": fed.net.init(0)}, **options)


def freely(fed, *kinds):
    """A server that asks for any rows with any task."""
    fed._allowed = {*fed._allowed, "test", *kinds}
    return fed


def recalled(fed):
    return fed.map(remembered, Cohort(EVERYBODY, 1, "train"), shared={"model": fed.net.init(0)})


KEYS = {
    "methods": (Policy(methods=("fedavg",)), training, "allows the methods fedavg. The server names none."),
    "tasks": (Policy(tasks=("score",)), training, "does not allow the task 'train'."),
    "tasks become": (Policy(tasks=("score",)), lambda fed: scored(fed, become=("remembered",)),
                     "does not allow the task 'remembered'."),
    "least_rows": (Policy(least_rows=42), training, "that rest on 42 different rows or more. This one would rest on"
                   " 41."),
    "least_rows of a step": (Policy(), lambda fed: training(fed, Work(steps=1, batch=1)), "would rest on 1."),
    "least_rows of a test": (Policy(least_rows=13), scored, "would rest on 12."),
    "least_rows_per_class": (Policy(least_rows_per_class=21), lambda fed: described(fed, rank=1), "would rest on 0."),
    "least_rows_per_part": (Policy(least_rows_per_part=3), lambda fed: described(fed, raw_parts, sizes=(4, 4, 2)),
                            "allows parts of 3 rows at least. Asked for were parts of 2."),
    "most_rank": (Policy(), lambda fed: described(fed, rank=6), "at most 5 vectors. Asked for were 6."),
    "most_epochs": (Policy(most_epochs=3), lambda fed: training(fed, Work(epochs=4)),
                    "at most 3 epochs. Asked for were 4."),
    "most_steps": (Policy(most_steps=20), lambda fed: training(fed, Work(epochs=6)),
                   "at most 20 steps. Asked for were 30."),
    "most_steps become": (Policy(most_steps=20), lambda fed: scored(fed, Work(epochs=3, rows="test"),
                                                                    become=("fine_tune",), lr=0.1),
                          "at most 20 steps. Asked for were 30."),
    "most_jobs": (Policy(most_jobs=1), lambda fed: fed.map(
        train, Cohort(torch.tensor([0, 0]), 0), work=LOCAL.work, shared={"model": fed.net.init(0)}, **LOCAL.at(0)),
        "at most 1 jobs. Asked for were 2."),
    "most_drawn": (Policy(most_drawn=100), lambda fed: training(fed, Work(epochs=3)),
                   "at most 100 rows in one job. Asked for were 150."),
    "train_on": (Policy(train_on=("fit",)), training, "allows training on the rows fit. Asked for were 'train'."),
    "train_on become": (Policy(train_on=("fit",)), lambda fed: scored(fed, Work(epochs=1, rows="test"),
                                                                      become=("fine_tune",), lr=0.1),
                        "allows training on the rows fit. Asked for were 'train'."),
    "signatures": (Policy(signatures=False), lambda fed: described(fed, rank=1),
                   "lets no signatures leave. The task 'class_vectors' tells them."),
    "counts": (Policy(counts=False), lambda fed: described(fed, class_counts), "lets no counts leave."),
    "scores": (Policy(scores=False), scored, "lets no scores leave."),
    "kept_models": (Policy(), recalled, "lets no kept models leave. The task 'remembered' tells them."),
    "uplinks": (Policy(uplinks="clip:1"), training,
                'by the uplink clip:1 or a stronger one alone. The run has none: add uplink="clip:1".'),
}  # fmt: skip


def test_every_key_is_tested():
    """A key that nothing checks is a promise that nothing keeps."""
    assert {name.split()[0] for name in KEYS} == {each.name for each in fields(Policy)}


@pytest.mark.parametrize("key", KEYS)
def test_a_key_stops_what_it_is_for(key, caplog):
    """The same call is answered where the key is not set, and refused where it is; both sides log the sentence."""
    policy, ask, sentence = KEYS[key]
    assert len(ask(sites(OPEN)).ids) in (2, 4)
    fed = sites(policy)
    with pytest.raises(NobodyAnswered, match=re.escape(sentence)):
        ask(fed)
    lines = [record.getMessage() for record in caplog.records if sentence in record.getMessage()]
    assert any(line.startswith("Refused: ") for line in lines)
    assert any(line.startswith("Lost: c0: refused: ") for line in lines)


def test_a_stronger_uplink_will_do():
    """A clip at half the norm serves who asks for a clip; one at twice the norm does not."""
    for chain, heard in (("clip:0.5", True), ("clip:1", True), ("clip:1+quantise:8", True), ("clip:2", False)):
        fed = sites(Policy(uplinks="clip:1"))
        fed.uplinks = parse(chain)
        if heard:
            assert len(training(fed).ids) == 4
        else:
            with pytest.raises(NobodyAnswered, match="The run has clip:2"):
                training(fed)


def test_test_rows_are_for_scores_alone():
    """Whatever the policy: nobody trains on them, and nobody is described by them."""
    for ask in (lambda fed: training(fed, Work(epochs=1, rows="test")),
                lambda fed: described(fed, rank=1, work=Work(rows="test"))):
        with pytest.raises(NobodyAnswered, match="A site's test rows are for scores alone"):
            ask(freely(sites()))
    for rows in ("fit", "validation"):
        with pytest.raises(NobodyAnswered, match="describes all its training rows or none"):
            described(sites(), rank=1, work=Work(rows=rows))


def test_a_site_without_test_rows_is_asked_all_the_same():
    """An answer that rests on no row tells nothing of any."""
    assert scored(sites(Policy(), test=0)).answers["size"].tolist() == [0] * 4


def test_an_answer_is_looked_at_before_it_leaves():
    """Also one of a task that the policy does not know: by what it says of its rows and classes."""
    few = {"size": torch.tensor(9)}
    with pytest.raises(Forbidden, match=r"rest on 10 different rows or more\. This one rests on 9"):
        Policy().refuse_answer("It", few, ())
    Policy().refuse_answer("It", {"size": torch.tensor(10)}, ())
    rare = {"basis": torch.zeros(2, 9), "basis_class": torch.tensor([0, 2])}
    with pytest.raises(Forbidden, match=r"fewer than 10 different rows\. This answer describes 2"):
        Policy().refuse_answer("It", rare, (0, 1))
    Policy().refuse_answer("It", rare, (0, 2))
    OPEN.refuse_answer("It", rare, ())


def test_a_task_of_your_own_tells_of_no_rare_class(monkeypatch):
    """What it says of classes that have rows enough leaves; with a rare one among them nothing does."""
    def own(net, client):
        kinds = client.y.unique()
        return Reply({"basis": torch.zeros(len(kinds), 9), "basis_class": kinds, "size": client.size})

    task = Plain("own", own, answers=lambda net: {"basis": Leaf((UpTo(3), 9)), "size": COUNT,
                                                  "basis_class": Leaf((UpTo(3),), torch.int64)})
    monkeypatch.setitem(TASKS, "own", task)
    assert described(sites(Policy(), rare=0), task).answers["basis_class"].values.tolist() == [[0, 1]] * 4
    assert len(described(sites(), task).ids) == 4
    with pytest.raises(NobodyAnswered, match="This answer describes 2"):
        described(sites(Policy()), task)


def test_a_run_that_everybody_refuses_says_why():
    """And does not speak of learning rates, before it begins and when its rounds are lost."""
    for method, policy, sentence in ((PACFL(local=LOCAL), Policy(signatures=False), "lets no signatures leave"),
                                     (FedAvg(local=LOCAL), Policy(most_epochs=1), "at most 1 epochs")):
        with pytest.raises(UmbelError, match=sentence) as caught:
            list(rounds(method, sites(policy), rounds=3))
        assert "learning rate" not in str(caught.value)


def test_an_open_policy_changes_no_bit():
    """What simulated nodes do is what they did."""
    a, b = (play(FedAvg(local=LOCAL), sites(policy), rounds=1) for policy in (OPEN, replace(Policy(), most_steps=99)))
    assert gap(a.models, b.models) == 0
