"""What a run folder holds is described once: documents, readers and writers share it."""

import io
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from run_folders import a_line, fake_run, resealed
from safetensors.torch import load_file, save_file
from terminal import Umbel

import umbel as u
from umbel.data.prepare import Column, Preparation
from umbel.errors import UmbelError
from umbel.pages import page, views
from umbel.pages.load import load
from umbel.reproduce.measures import Finished
from umbel.runs import compare, schema, screen
from umbel.runs.checkpoint import line_of
from umbel.runs.experiment import Experiment
from umbel.runs.kinds import Either, Kind, ListOf, Table
from umbel.runs.sealed import Sealed
from umbel.runs.session import Session

EXPERIMENT = Experiment(method="pacfl", data="digits", scenario="rotation-4", clients=4, rounds=2, device="cpu",
                        settings={"epochs": 1})
DOCUMENTS = Path(__file__).parents[2] / "docs" / "results.md"


DEFINED_ABOVE = {"score": set(schema.SUMMARY), "validation": set(schema.SUMMARY), "metric": set(schema.METRIC.names)}


# The documents


def rows_of(section: str) -> dict[str, str]:
    """Keys in the first column of a section's first table, each with the row that explains it."""
    text = DOCUMENTS.read_text().partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    return {key: row for row in rows for key in re.findall(r"`(\w+)`", row.split("|")[1])}


def inner(kind: Kind) -> set[str]:
    """The names of a table that is described within a table."""
    while isinstance(kind, Either | ListOf):
        kind = kind.kind
    return set(kind.names) if isinstance(kind, Table) else set()


@pytest.mark.parametrize(("section", "kind"), [
    ("result.json", schema.RESULT), ("rounds.jsonl", schema.RECORD), ("clusters.json", schema.CLUSTERS),
    ("What was understood", schema.UNDERSTOOD), ("preparation.json", schema.PREPARATION),
    ("forecasts.json", schema.FORECASTS),
])
def test_the_documents_name_exactly_what_is_described(section: str, kind: Table) -> None:
    """Each key has a row, and the row names each key within it; `score` refers to a table of its own."""
    rows = rows_of(section)
    assert set(rows) == set(kind.names)
    for key, row in rows.items():
        names = inner(kind.names[key]) - (DEFINED_ABOVE.get(key, set()) if section == "rounds.jsonl" else set())
        assert names <= set(re.findall(r"\w+", row)), key


def test_the_documents_explain_every_part_of_a_score() -> None:
    """The table of scores has the keys of a summary."""
    assert set(rows_of("Scores")) == set(schema.SUMMARY)


# Writers and readers


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """A finished run's files."""
    session = Session.start(EXPERIMENT, tmp_path_factory.mktemp("kept") / "run")
    list(session.rounds())
    session.finish()
    return {path.name: path.read_bytes() for path in session.folder.path.iterdir()}


@pytest.fixture
def folder(kept: dict[str, bytes], tmp_path: Path) -> Path:
    """A copy of that run."""
    path = tmp_path / "pacfl-s0"
    path.mkdir()
    for name, content in kept.items():
        (path / name).write_bytes(content)
    return path


def changed(folder: Path, name: str, change: Callable[[Any], object]) -> None:
    """Change a file of JSON, and seal the folder anew."""
    value = json.loads((folder / name).read_text())
    change(value)
    (folder / name).write_text(json.dumps(value))
    resealed(folder)


ROWS = (np.zeros((20, 1, 8, 8), dtype=np.uint8), np.arange(20) % 10)
READERS: dict[str, Callable[[Path], object]] = {
    "load": u.load,
    "report": lambda path: u.report(path, path.parent / "page.html"),
    "admit": lambda path: u.admit(path, ROWS),
    "compare": lambda path: compare.table(path.parent, compare.Plan({path.name: EXPERIMENT}, {path.name: {}})),
    "tables": lambda path: Finished(path, {}).info,
    "resume": u.resume,
}


@pytest.mark.parametrize("reader", READERS)
def test_every_reader_says_the_same_sentence(reader: str, folder: Path) -> None:
    """It names the file, the key path, the rule and what was got; of a newer version, who wrote it."""
    READERS[reader](folder)
    changed(folder, "result.json", lambda info: info["score"]["cluster_model"].update(mean="much"))
    with pytest.raises(UmbelError, match=r"The 'score.cluster_model.mean' in .*/result.json must be a number from .*"
                                         r', or null. Got "much" instead\.'):
        READERS[reader](folder)
    changed(folder, "result.json", lambda info: info.update(schema=3))
    with pytest.raises(UmbelError, match=r"/result.json was written by a newer umbel: its schema is above 2"):
        READERS[reader](folder)


def test_the_command_line_says_it_too(folder: Path, umbel: Umbel) -> None:
    """A finished run that is looked at again: one line, exit code 2."""
    changed(folder, "result.json", lambda info: info["seconds"].update(total=None))
    code, _, err = umbel("run", "--resume", "--out", folder)
    assert (code, err.count("\n")) == (2, 1)
    assert "The 'seconds.total' in" in err


def test_what_a_later_version_adds_is_let_pass(folder: Path) -> None:
    """New keys beside the known ones harm nobody, in the metric either."""
    for name, change in {
        "result.json": lambda info: (info.update(new={"a": [1]}), info["metric"].update(new=True)),
        "clusters.json": lambda table: table["clients"][0].update(new="x"),
        "model.json": lambda about: about.update(new=None),
    }.items():
        changed(folder, name, change)
    lines = [{**json.loads(line), "new": 1} for line in (folder / "rounds.jsonl").read_text().splitlines()]
    for line in lines:
        line["metric"]["new"] = True
    (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    resealed(folder)
    for read in READERS.values():
        read(folder)


def test_a_writer_holds_its_lines_against_the_description() -> None:
    """A record that no reader would take is refused when it is written."""
    assert json.loads(line_of(a_line(3)))["round"] == 3
    with pytest.raises(UmbelError, match=r"The 'seconds.wall' in a new line of rounds.jsonl must be"):
        line_of({**a_line(3), "seconds": {"wall": "long"}})


def test_a_preparation_is_held_against_its_description(tmp_path: Path) -> None:
    """Where it is written and where it is read: a deviation of nothing, a scaling that is none."""
    how = Preparation((Column("age", 60.0, 9.0, missing=True), Column("ward", levels=(5, 9))), objective=u.Classify(2))
    about = json.loads(how.json())
    assert schema.preparation_of(about, "it") == how
    for change, sentence in (({"scaling": "loud"}, "The 'scaling' in it must be"), ({"columns": []}, "a list of at"),
                             ({"columns": [{"name": "age"}]}, r"The 'columns\[0\].mean' in it must be a number")):
        with pytest.raises(UmbelError, match=sentence):
            schema.preparation_of({**about, **change}, "it")
    fed = u.simulate(u.Population.of_sites({"a": (np.eye(2, dtype=np.float32), [0, 1])}))
    fed.provenance = replace(fed.provenance, preparation=replace(how, columns=(Column("\x1b[2J"),)))
    with pytest.raises(UmbelError, match=r"The 'columns\[0\].name' in the new preparation.json must be a text"):
        u.run("fedavg", fed, rounds=1, out=tmp_path / "run")


CONTRADICTIONS: dict[str, tuple[str, Callable[[Any], object], str]] = {
    "names": ("clusters.json", lambda all: all["clients"][1].update(name="c000"), "each client one name of its own"),
    "count": ("clusters.json", lambda all: all["clients"].pop(), "as many clients, result.json 4"),
    "labels": ("result.json", lambda info: info["clusters"]["labels"].update(c000=9), "the same clusters of clients"),
    "members": ("clusters.json", lambda all: all["members"].update({"0": []}), "the same clusters of clients"),
    "truth": ("clusters.json", lambda all: all["clients"][0].update(truth=None), "the same true groups"),
    "clusters": ("result.json", lambda info: info["clusters"].update(count=3), "as many clusters and clients without"),
    "rounds": ("result.json", lambda info: info["rounds"].update(after=10**9), "the rounds -1 to 999999999, in order"),
    "metric": ("result.json", lambda info: info["metric"].update(name="AUC"), "one metric"),
}


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_files_that_contradict_each_other_are_refused(case: str, folder: Path) -> None:
    """Clients, clusters, true groups, rounds and metric are the same in all of them."""
    name, change, rule = CONTRADICTIONS[case]
    changed(folder, name, change)
    with pytest.raises(UmbelError, match=f"must have {rule}"):
        Sealed(folder).finished()


def test_a_short_file_describes_no_network_of_gigabytes(folder: Path) -> None:
    """Before memory is taken for it."""
    changed(folder, "model.json", lambda about: about["objective"].update(classes=10**9))
    with pytest.raises(UmbelError, match=r"The 'classes' in .*model.json must be a whole number, of at most the"):
        u.load(folder)
    changed(folder, "model.json", lambda about: about.update(shape=[1, 2**20, 2**20]))
    with pytest.raises(UmbelError, match=r"The 'shape' in .*model.json must be of inputs that a network with 15,010"):
        u.load(folder)


# Tensors


def other(folder: Path, name: str, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    leaves = load_file(folder / f"{name}.safetensors")
    change(leaves)
    save_file(leaves, folder / f"{name}.safetensors")
    resealed(folder)


def half(name: str) -> Callable[[dict[str, torch.Tensor]], object]:
    return lambda leaves: leaves.update({name: leaves[name][:1].clone()})


TENSORS: dict[str, tuple[str, Callable[[dict[str, torch.Tensor]], object], str]] = {
    "a label": ("state", lambda leaves: leaves["labels"].fill_(9), "must have the clusters of its result.json"),
    "a layer": ("state", lambda leaves: leaves.pop("models/1.bias"), "'models' in .* must be all layers of the run's"),
    "its shape": ("state", half("models/1.bias"), "'models' in .* must be as many of each layer"),
    "its type": ("state", lambda leaves: leaves.update({"models/1.bias": leaves["models/1.bias"].long()}),
                 "must be a layer of the shape"),
    "who": ("evidence", lambda leaves: leaves["who"].add_(1), "'who' in .* must be of these 4 clients"),
    "distances": ("evidence", lambda leaves: leaves["proximity"].fill_(torch.nan), "'proximity' in .* finite numbers"),
    "a tree": ("evidence", lambda leaves: leaves["linkage"].fill_(1), "'linkage' in .* must be of these 4 clients"),
    "its links": ("evidence", half("linkage"), "'linkage' in .* must be of these 4 clients"),
    "a curve": ("evidence", half("cut"), "'cut' in .* must be of the shape"),
    "an anchor": ("evidence", half("anchor/1.bias"), "'evidence/anchor/1.bias' in .* must be a layer"),
    "signatures": ("evidence", half("signature/basis"), "'signature' in .* must be of 4 of 4 clients"),
    "a page": ("memory", lambda leaves: leaves.pop("c000/last/1.bias"), "'c000/last' in .* must be layers of the run"),
    "a client": ("memory", lambda leaves: leaves.update({"new/last/1.bias": torch.zeros(200)}), "memory_rounds"),
}


@pytest.mark.parametrize("case", TENSORS)
def test_tensors_of_another_run_are_refused(case: str, folder: Path) -> None:
    """Models are of the run's network, labels and evidence of its clients."""
    name, change, sentence = TENSORS[case]
    if case == "a curve":
        other(folder, name, lambda leaves: leaves.update(cut=torch.zeros(3, dtype=torch.float64)))
    else:
        other(folder, name, change)
    with pytest.raises(UmbelError, match=sentence):
        u.load(folder)
    if name == "evidence" and case not in ("an anchor", "signatures"):  # which no page draws
        with pytest.raises(UmbelError, match=sentence):
            load(folder)


def header(leaves: dict[str, Any]) -> bytes:
    head = json.dumps(leaves).encode()
    return len(head).to_bytes(8, "little") + head


HEADERS: dict[str, tuple[dict[str, Any], str]] = {
    "huge": ({"x": {"dtype": "F32", "shape": [2**40, 0], "data_offsets": [0, 0]}}, "must have shapes that fit its"),
    "both": ({name: {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for name in ("x", "x/y")},
             "must have no name that is a tensor and a table of them"),
    "deep": ({"a/" * 20: {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}, "must have names that are nested"),
    "odd": ({"x\x1b[2J": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}, "must have names without control"),
    "type": ({"x": {"dtype": "U64", "shape": [0], "data_offsets": [0, 0]}}, "must have the types that umbel writes"),
    "axes": ({"x": {"dtype": "F32", "shape": [0] * 9, "data_offsets": [0, 0]}}, "must have shapes that fit its size"),
}


@pytest.mark.parametrize("case", HEADERS)
def test_a_header_that_umbel_does_not_write_is_refused(case: str, folder: Path) -> None:
    """Whatever the library makes of it."""
    head, sentence = HEADERS[case]
    (folder / "state.safetensors").write_bytes(header(head))
    resealed(folder)
    with pytest.raises(UmbelError, match=sentence):
        u.load(folder)


def test_a_newcomer_that_cannot_be_placed_by_the_evidence_is_told_so(folder: Path) -> None:
    """What a method keeps of its own is described by nobody: the sentence has folder and reason."""
    other(folder, "evidence", lambda leaves: [leaves.pop(name) for name in list(leaves) if name.startswith("anchor/")])
    with pytest.raises(UmbelError, match=r"The evidence in .* must be what its method left there.*anchor"):
        u.admit(folder, ROWS)


@pytest.mark.parametrize("name", ["test/by_shares", "test/looks", "parts/kind", "part_sizes"])
def test_evidence_of_tests_is_whole(name: str, folder: Path) -> None:
    """One of the numbers by which a cut is explained, or of the parts it rests on, is missing: it is named."""
    other(folder, "evidence", lambda leaves: leaves.pop(name))
    with pytest.raises(UmbelError, match=rf"The '{name}' in .*evidence.safetensors must be there with the others"):
        u.load(folder)


# The page and the terminal


def test_the_seal_guards_the_page(folder: Path) -> None:
    """A digit more in what is drawn, and the file is named."""
    content = bytearray((folder / "evidence.safetensors").read_bytes())
    content[-1] ^= 1
    (folder / "evidence.safetensors").write_bytes(content)
    with pytest.raises(UmbelError, match=r"evidence.safetensors must be as umbel wrote it"):
        load(folder)


@pytest.mark.parametrize("name", ["evidence", "memory"])
def test_the_page_follows_no_link(name: str, tmp_path: Path) -> None:
    """What is drawn lies in the folder."""
    folder = fake_run(tmp_path / "a", "pacfl" if name == "evidence" else "fedavg")
    (folder / f"{name}.safetensors").rename(tmp_path / "moved")
    (folder / f"{name}.safetensors").symlink_to(tmp_path / "moved")
    with pytest.raises(UmbelError, match=rf"{name}.safetensors must be a regular file. It is a link"):
        load(folder)


def test_data_of_ones_own_have_no_scenario_on_the_page(tmp_path: Path) -> None:
    """The title says the data alone, not None."""
    text = page.write([load(fake_run(tmp_path / "a", data="own", scenario=None, test_mode=None))])
    assert "<h1>pacfl on own</h1>" in text
    assert "None" not in text.replace(page.drawing_library(), "")


def test_a_heat_map_that_no_screen_shows_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small file with a label of its own for every client would be a page of gigabytes."""
    run = load(fake_run(tmp_path / "a"))
    labels = views.label_shares(run)
    assert labels is not None
    assert views.against_truth(run) is not None
    monkeypatch.setattr(views, "CELLS", 12 * len(labels[0]) - 1)
    assert views.label_shares(run) is None
    monkeypatch.setattr(views, "CELLS", 3 * 3 - 1)
    assert views.against_truth(run) is None


def test_text_of_a_run_cannot_become_markup_of_the_terminal(tmp_path: Path) -> None:
    """Square brackets are text, in a table and below it."""
    info = Sealed(fake_run(tmp_path / "a", "[/x]", scenario="[bold]")).result()
    info = {**info, "metric": {**info["metric"], "name": "[/y]"}, "lost": {"[/z]": 1}, "device": "[/d]"}
    console = Console(record=True, width=200, file=io.StringIO())
    console.print(screen.result_table(info))
    console.print(screen.compare_table(compare.lines_of([info]), "[/t]"))
    text = console.export_text() + "".join(screen.result_lines(info))
    assert all(word in text for word in ("[/x]", "[bold]", "[/y]", "[/z]", "[/d]", "[/t]"))
