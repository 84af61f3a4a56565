"""What a site writes down: a line for every message, before its answer leaves."""

import io
import json
import logging
import stat

import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict
from rich.console import Console
from test_policy import patients
from test_sites import SITES, WISHES, load_data

from umbel.errors import UmbelError
from umbel.flower import audit, client
from umbel.flower.apps import client_app, play
from umbel.flower.inprocess import InProcessGrid

POLICY = 'least_rows_per_class = 14\n'


@pytest.fixture(autouse=True)
def _quiet(caplog):
    caplog.set_level(logging.WARNING, logger="flwr")


def grid_of(tmp_path, load=load_data, **config):
    """Four sites, each with a memory of its own."""
    grid = InProcessGrid(client_app(load), run_config=WISHES)
    for name in SITES[:4]:
        grid.connect(**{"name": name, "memory-dir": str(tmp_path / name), **config})
    return grid


def played(grid, tmp_path, **wishes):
    console = Console(file=io.StringIO(), width=120)
    play(grid, {**WISHES, "out": str(tmp_path / "run"), "rounds": 1, **wishes}, "1", console, clock=grid.clock)


def lines(tmp_path, name="alpha"):
    return list(audit.read(audit.place(tmp_path / name, name)))


def test_every_message_is_a_line(tmp_path):
    """When, run, task, phase, round, bytes in and out, names and shapes of what left; no number of a row."""
    grid = grid_of(tmp_path)
    played(grid, tmp_path, method="pacfl")
    mine = [message for push in grid.pushed for message in push if message.metadata.dst_node_id == 1000]
    log = lines(tmp_path)
    assert len(log) == len(mine)
    assert [line["task"] for line in log[:4]] == ["describe", "class_vectors", "class_counts", "distinct_counts"]
    assert log[0]["told"].keys() == {"name", "train", "test", "fingerprint", "version", "policy"}
    assert "left" not in log[0]
    [trained] = [line for line in log if line["task"] == "train"]
    run = json.loads((tmp_path / "run" / "roster.json").read_text())["run"]
    assert {name: trained[name] for name in ("site", "run", "phase", "round", "jobs")} == {
        "site": "alpha", "run": run, "phase": "train", "round": 0, "jobs": 1}
    assert trained["left"]["size"] == []
    assert sorted(map(tuple, trained["left"].values())) == sorted(
        [(), *(tuple(leaf.shape) for leaf in client_model().shapes.values())])
    assert trained["out"] == trained["in"] + 128 + 8  # the model comes and goes; a count goes with it
    assert all(line["when"].endswith("+00:00") and "refused" not in line for line in log)


def client_model():
    from umbel.flower.apps import CONFIG, model_of

    return model_of({**CONFIG, **WISHES})


def test_the_log_is_its_owners_alone(tmp_path):
    """0600, wherever it is asked for."""
    place = tmp_path / "logs" / "alpha.jsonl"
    grid = grid_of(tmp_path, audit=str(place))
    played(grid, tmp_path, method="fedavg")
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    assert {line["site"] for line in audit.read(place)} == set(SITES[:4])
    assert not (tmp_path / "alpha" / "_audit").exists()


def test_a_refusal_is_a_line(tmp_path, caplog):
    """With the sentence that the server has too."""
    path = tmp_path / "policy.toml"
    path.write_text("scores = false\n")
    played(grid_of(tmp_path, policy=str(path)), tmp_path, method="fedavg")
    refused = [line for line in lines(tmp_path) if "refused" in line]
    assert {line["task"] for line in refused} == {"score"}
    assert refused[0]["refused"] == "The site's policy lets no scores leave. The task 'score' tells them."
    assert refused[0]["out"] == 0
    assert f"Lost: alpha: refused: {refused[0]['refused']}" in caplog.text.replace("..", ".")
    assert json.loads((tmp_path / "run" / "result.json").read_text())["score"]["cluster_model"] is None


def test_what_cannot_be_logged_does_not_leave(tmp_path, caplog):
    """A full disk, or a link where the log should be: nothing is written behind it, and nothing is sent."""
    secret = tmp_path / "secret"
    secret.write_text("mine")
    (tmp_path / "alpha" / "_audit").mkdir(parents=True)
    audit.place(tmp_path / "alpha", "alpha").symlink_to(secret)
    played(grid_of(tmp_path), tmp_path, method="fedavg", **{"min-nodes": 3})
    assert secret.read_text() == "mine"
    assert "alpha.jsonl must be a regular file. It is a link" in caplog.text
    assert json.loads((tmp_path / "run" / "result.json").read_text())["clients"] == 3


def test_a_line_that_was_cut_off_spoils_no_other(tmp_path):
    """A crash in the middle of a line: the next one begins anew, and the rest is read."""
    path = tmp_path / "log.jsonl"
    audit.write(path, {"task": "a"})
    with path.open("ab") as file:
        file.write(b'{"task": "b", "le')
    audit.write(path, {"task": "c"})
    assert [line["task"] for line in audit.read(path)] == ["a", "c"]


def test_words_from_outside_are_harmless():
    """A line is of one line, and what cannot be read is a question mark."""
    line = audit.entry("alpha", {"run": "x\n\x1b[31m", "about": "{"}, RecordDict(), {"refused": "no\nmore"},
                       RecordDict({"words": ConfigRecord()}))
    assert (line["run"], line["task"], line["refused"]) == ("x??[31m", "?", "no?more")


# Before a run ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("policy", "wishes", "sentence"), [
    ("most_rank = 2", {"method": "pacfl"}, "allows one call at most 2 vectors. Asked for were 3."),
    ("most_epochs = 1", {"method": "fedavg"}, "allows one call at most 1 epochs. Asked for were 2."),
    ("most_epochs = 9", {"method": "flag"}, "allows one call at most 9 epochs. Asked for were 20."),
    ("most_epochs = 9", {"method": "fedavg", "fine-tune": 10}, "at most 9 epochs. Asked for were 10."),
    ('methods = ["flag"]', {"method": "pacfl"}, "allows the methods flag. Asked for was 'pacfl'."),
    ('train_on = ["fit"]', {"method": "fedavg"}, "allows training on the rows fit. Asked for were 'train'."),
    ("signatures = false", {"method": "pacfl"}, "lets no signatures leave. The method 'pacfl' needs them."),
    ("counts = false", {"method": "kmeans"}, "lets no counts leave. The method 'kmeans' needs them."),
    ("scores = false", {"method": "ifca"}, "lets no scores leave. The method 'ifca' needs them."),
    ('uplinks = "clip:1"', {"method": "fedavg", "uplink": "clip:3"}, "The run has clip:3.0: add uplink=\"clip:1\"."),
])  # fmt: skip
def test_a_run_that_sites_forbid_ends_before_it_begins(tmp_path, policy, wishes, sentence):
    """One sentence at once, and not after the ten minutes for which nodes are waited for."""
    path = tmp_path / "policy.toml"
    path.write_text(policy)
    grid = grid_of(tmp_path, policy=str(path))
    with pytest.raises(UmbelError, match="The run begins with 4 nodes, and 4 of those that are connected") as caught:
        played(grid, tmp_path, **wishes)
    assert "The policy of 'alpha' " in str(caught.value)
    assert sentence.replace("3.0", "3") in str(caught.value).replace("3.0", "3")
    assert grid.time < 1
    assert lines(tmp_path)[0]["refused"].startswith("The policy of 'alpha' ")


def test_a_run_goes_on_without_a_site_that_forbids_it(tmp_path, caplog):
    """As long as there are enough others."""
    path = tmp_path / "policy.toml"
    path.write_text('methods = ["flag"]')
    grid = grid_of(tmp_path)
    grid.contexts[1000].node_config["policy"] = str(path)
    played(grid, tmp_path, method="fedavg", **{"min-nodes": 3})
    assert json.loads((tmp_path / "run" / "result.json").read_text())["clients"] == 3
    assert "refused: The policy of 'alpha' allows the methods flag. Asked for was 'fedavg'." in caplog.text


def test_what_a_policy_changes_is_told_to_the_server(tmp_path, caplog):
    """And nothing where it changes nothing."""
    caplog.set_level(logging.INFO, logger="flwr")
    path = tmp_path / "policy.toml"
    path.write_text("least_rows = 3")
    grid = grid_of(tmp_path)
    grid.contexts[1000].node_config["policy"] = str(path)
    played(grid, tmp_path, method="fedavg")
    known = "is here, with 40 training and 40 test rows"
    assert f'alpha {known}, and a policy of its own: {{"least_rows": 3}}.' in caplog.text
    assert f"bravo {known}.\n" in caplog.text


def test_a_wrong_policy_is_told_at_the_start(tmp_path, caplog):
    """At both sides, before anything is asked."""
    path = tmp_path / "policy.toml"
    path.write_text("least_row = 3")
    with pytest.raises(UmbelError, match="there are 0 nodes"):
        played(grid_of(tmp_path, policy=str(path)), tmp_path, method="fedavg", wait=1.0)
    sentence = f"The policy {path} cannot be kept. There is no setting of a policy named 'least_row'."
    assert f"Refused: {sentence}" in caplog.text
    assert f"Lost: node 1000: refused: {sentence}" in caplog.text


def test_a_site_of_patients_sends_no_row_by_default(tmp_path):
    """On the deployment's own way: a class with one row is in no vector that leaves, with no policy given."""
    people = patients()

    def load(context):
        k = SITES.index(context.node_config["name"])
        return tuple((people.pool.x[rows[k]], people.pool.y[rows[k]]) for rows in (people.train, people.test))

    grid = grid_of(tmp_path, load)
    sent = []
    grid.tamper = lambda reply: sent.append(reply) or reply
    played(grid, tmp_path, method="flag", settings="cut=gap gradient_epochs=2 epochs=1")
    kinds = [reply.content["0"]["basis_class"].numpy() for reply in sent
             if "basis_class" in reply.content.array_records.get("0", {})]
    assert np.array_equal(kinds, [[0, 1]] * 4)


def test_a_memory_that_cannot_be_written_is_told_at_the_start(tmp_path, caplog, monkeypatch):
    """A file in its place, a disk with no room: the site is not placed, to be lost in every round."""
    (tmp_path / "alpha").write_text("a file")
    grid = grid_of(tmp_path)
    grid.contexts[1000].node_config["audit"] = str(tmp_path / "alpha.jsonl")
    played(grid, tmp_path, method="fedavg", **{"min-nodes": 3})
    assert f"refused: The folder {tmp_path / 'alpha'} cannot be made: File exists" in caplog.text
    monkeypatch.setattr(client, "LEAST_ROOM", 2**62)
    with pytest.raises(UmbelError, match=r"needs 4,611,686,018,427,3\d\d,\d\d\d free bytes for what"):
        client.refuse_unwritable(tmp_path / "bravo", 100)
    assert [path.name for path in (tmp_path / "bravo").iterdir() if path.name.startswith("_")] == ["_audit"]


def test_what_a_killed_write_left_is_removed(tmp_path):
    """Half a page of a site that was killed: gone when it writes the next one."""
    import torch

    folder = tmp_path / "run" / "site"
    folder.mkdir(parents=True)
    left = folder / f".3.safetensors.{'0' * 16}.part"
    left.write_bytes(b"half")
    client.DiskDiary(tmp_path / "run").write("site", 4, {"last": {"w": torch.zeros(1)}})
    assert [path.name for path in folder.iterdir()] == ["4.safetensors"]
