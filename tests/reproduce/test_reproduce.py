"""A paper's tables: their data, their cells as runs, ours beside theirs."""

import csv
import json
import shlex
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from real_data import REAL
from run_folders import resealed
from terminal import SMALL, Umbel, snapshot, start

from umbel.algorithms import ALGORITHMS
from umbel.errors import UmbelError
from umbel.nets.objective import Metric
from umbel.reproduce import beside, cells, computed, cost, selection
from umbel.reproduce.beside import Outcome
from umbel.reproduce.measures import MEASURES
from umbel.reproduce.selection import AtHand
from umbel.reproduce.table import Printed, TableCell, block, load, names
from umbel.runs.checkpoint import RunFolder
from umbel.runs.experiment import Experiment
from umbel.runs.recipe import settable

PRINTED = REAL.parent / "tables" / "paper-tables.csv"

TINY = """
title = "A paper of one table"
over = "seeds"
protocol = {clients = 4, rounds = 2, eval_every = 1, fine_tune = 0, settings = {epochs = 1, batch = 100}}
words = {turned = {scenario = "rotation-4"}, hot = {rounds = 4, settings = {lr = 1e30}}}
band = {accuracy = 100, ari = 0.1}

[table1]
title = "Table 1"
why = [{of = ["fedavg ari"], text = "One model has no clusters."}]
[table1.printed]
accuracy = '''
        digits turned  mnist turned
fedavg  50±1           60
solo    ?              60
'''
ari = '''
        digits turned
fedavg  1
'''

[table2]
title = "Table 2"
own = ["accuracy"]
rows = ["fedavg hot", "fedavg"]
columns = ["digits"]

[table3]
title = "What it costs to form clusters"
own = ["client_seconds", "server_seconds"]
band = {upload = 0.001}
[table3.protocol]
rounds = 1
settings = {clusters = 2, "cflgt.pretrain" = 1, "cflgt.cut" = "gate", "flhc.pretrain" = 1, "flhc.cut" = "count"}
[table3.words]
cflgt = {phase = "signature"}
flhc = {phase = "train"}
fedsem = {phase = "train"}
ifca = {phase = "admit"}
[table3.printed]
upload = '''
        digits turned
cflgt   0.078
flhc    ?
fedsem  ?
ifca    ?
'''

[table4]
title = "Newcomers and targets"
protocol = {clients = 8, rounds = 4, join = "2@3", fine_tune = 1, model = "lenet5", settings = {"pacfl.cut" = "count"}}
targets = {"digits turned" = 5}
rows = ["fedavg", "pacfl", "lg"]
columns = ["digits turned"]
own = ["newcomers", "converged", "clusters", "smallest", "largest", "rounds", "megabits", "moved", "cut"]
[table4.words]
fedavg = {judge = "cluster_model"}
pacfl = {judge = "fine_tuned"}
lg = {judge = "last_local|fine_tuned"}
"""


# The tables as data


@pytest.mark.parametrize("name", names())
def test_every_cell_of_every_table_is_an_experiment(name: str) -> None:
    """Its words are known, its settings are of its method; measures, bands and reasons speak of what there is."""
    table = load(name)
    known = {*(each for kind in ALGORITHMS.values() for each in settable(kind)),
             *(f"{method}.{each}" for method, kind in ALGORITHMS.items() for each in settable(kind))}
    for layer in [*table.layers, *table.words.values()]:
        assert known >= set(layer.get("settings", {}))
    for cell in table.cells if not table.compute else ():
        experiment = table.experiment(cell, rounds=7)
        assert experiment.rounds <= 7
        assert set(table.reading(cell)) <= {"judge", "phase"}
    assert set(MEASURES) >= {*table.measures, *table.band}
    assert bool(table.compute) == (table.compute in computed.COMPUTED)
    assert {table.targets.get(column) for column in table.columns} != {None} or "rounds" not in table.measures
    for reason in table.why:
        assert any(reason.fits(cell, measure) for cell, measure in table.printed), reason.text


def test_all_published_tables_are_there() -> None:
    """Five papers: every table and every figure that shows results."""
    wanted = [*(f"comparative/table{k}" for k in range(2, 7)), "comparative/figure5",
              *(f"flag/table{k}" for k in range(1, 9)), "flag/figure1", "flag/figure2",
              *(f"pacfl/table{k}" for k in range(1, 11)), *(f"pacfl/figure{k}" for k in range(2, 7)),
              "fedclust/table1", "fedclust/figure1", "cflgt/table1", "cflgt/table2",
              *(f"cflgt/figure{k}" for k in range(4, 9))]
    assert set(wanted) <= set(names())


SETS = {"CIFAR-10": "cifar10", "CIFAR-100": "cifar100", "FMNIST": "fashion-mnist", "SVHN": "svhn", "MNIST": "mnist",
        "KMNIST": "kmnist", "MIX-4": "mix-4"}
ROMAN = {"I": "1", "II": "2", "III": "3", "IV": "4", "V": "5", "VI": "6"}
METRICS = {"rounds_to_target": "rounds", "megabits_to_target": "megabits"}


@pytest.mark.skipif(not PRINTED.is_file(), reason=f"no printed figures in {PRINTED}: the check needs them")
def test_printed_figures_are_the_papers() -> None:
    """Value and ± of every printed figure, for each table, measure and data set."""
    theirs: dict[tuple[str, str, str], Counter[Printed]] = {}
    for line in csv.DictReader(PRINTED.read_text().splitlines()):
        name = f"{line['paper'].lower()}/table{ROMAN.get(line['table'], line['table'])}"
        if name not in names() or line["data"] not in SETS or line["method"] == "target":
            continue
        metric = "newcomers" if name == "pacfl/table4" else METRICS.get(line["metric"], line["metric"])
        figure = Printed(float(line["value"]), float(line["std"]) if line["std"] else None) if line["value"] \
            else Printed(dash=True)
        theirs.setdefault((name, metric, SETS[line["data"]]), Counter())[figure] += 1
    theirs["pacfl/table3", "accuracy", "mix-4"][Printed(76.79, 0.43)] += 1  # from the text
    ours: dict[tuple[str, str, str], Counter[Printed]] = {key: Counter() for key in theirs}
    for name in {name for name, _, _ in theirs}:
        for (cell, measure), figure in load(name).printed.items():
            if (key := (name, measure, cell.column.split()[0])) in ours:
                ours[key][figure] += 1
    assert ours == theirs
    assert sum(sum(each.values()) for each in theirs.values()) > 800


def test_a_name_is_the_sum_of_its_words() -> None:
    """Protocol, column and row, the later over the earlier; a setting goes to the methods that have it."""
    table = load("flag/table6")
    found = table.experiment(TableCell("flag beta=0.3", "fashion-mnist 30%"), seed=2, rounds=50, device="cpu")
    assert (found.method, found.data, found.scenario) == ("flag", "fashion-mnist", "flag:labels=0.3,alpha=1")
    assert (found.rounds, found.seed, found.settings["beta"]) == (50, 2, 0.3)
    assert (found.settings["rule"], "relative" in found.settings) == ("knee", False)
    assert load("comparative/table3").experiment(TableCell("server-side", "mnist"), seed=1).seed == 43
    assert load("pacfl/table2").experiment(TableCell("solo", "cifar10"), rounds=50).rounds == 5  # at most, not exactly


CELLS = [path for path in sorted((Path(__file__).parents[2] / "recipes").glob("*.toml"))
         if path.read_text().splitlines()[1].startswith("# Cell ")]


@pytest.mark.parametrize("path", CELLS, ids=lambda path: path.stem)
def test_a_recipe_of_a_cell_is_that_cell(path: Path) -> None:
    """Its second line names the cell: # Cell 'row' in column 'column' of paper/table."""
    _, row, _, column, rest = path.read_text().splitlines()[1].split("'")
    table = load(rest.removeprefix(" of ").rstrip("."))
    assert Experiment.from_toml(path) == table.experiment(TableCell(row, column))


def test_a_part_of_a_set_lowers_the_scenarios_numbers() -> None:
    """CFLGT's 50 images a label do not fit a part of CIFAR-10."""
    table, cell = load("cflgt/table1"), TableCell("cflgt", "cifar10 s1")
    assert table.experiment(cell).scenario == "cflgt-1"
    assert table.experiment(cell, parts={"cifar10": "20,000 of 50,000"}).scenario == "cflgt-1:per_label=20"


def test_blocks_are_read_as_they_stand() -> None:
    """Two spaces lie between figures; a dash is a printed dash, a question mark is a curve without numbers."""
    found = block("""
        mnist      kmnist
    a   1.5±0.25   --
    b   -0.01      ?
    """)
    assert found == {TableCell("a", "mnist"): Printed(1.5, 0.25), TableCell("a", "kmnist"): Printed(dash=True),
                     TableCell("b", "mnist"): Printed(-0.01), TableCell("b", "kmnist"): Printed()}
    with pytest.raises(UmbelError, match="needs 2 figures"):
        block("x  y\na  1")


def test_only_names_whole_words_first() -> None:
    """`mnist` is MNIST alone where the table has it; words in one text must all fit, texts are alternatives."""
    table = load("comparative/table2")
    assert {cell.column for cell in selection.selected(table, ["mnist"])} == {"mnist"}
    assert {cell.column for cell in selection.selected(table, ["mni"])} == {"mnist", "fashion-mnist", "kmnist"}
    both = [TableCell("FL", "kmnist"), TableCell("oracle", "mnist")]
    assert selection.selected(table, ["oracle mnist", "FL kmnist"]) == both
    flag = load("flag/table2")
    assert len(selection.selected(flag, ["fashion-mnist 20%"])) == 8
    with pytest.raises(UmbelError, match="There is no cell of comparative/table2 with 'cifar'"):
        selection.selected(table, ["cifar"])


def test_only_ignores_the_case_of_letters() -> None:
    """Rows are spelled as the paper spells them, FL or fedavg: nobody should have to look that up."""
    table = load("comparative/table2")
    assert selection.selected(table, ["mnist fl"]) == [TableCell("FL", "mnist")]
    assert selection.selected(table, ["FL"]) == selection.selected(table, ["fl"])
    assert selection.selected(table, ["MNIST"]) == selection.selected(table, ["mnist"])
    assert {cell.column for cell in selection.selected(table, ["MNI"])} == {"mnist", "fashion-mnist", "kmnist"}


def test_a_part_that_is_too_small_is_skipped_with_the_reason() -> None:
    """KMNIST's part has no 48 clients of 1,000 images."""
    table = load("comparative/table2")
    at_hand = AtHand(parts={"kmnist": "13,284 of 60,000"})
    assert not selection.skipped(table, TableCell("FL", "mnist"), at_hand)
    assert selection.skipped(table, TableCell("FL", "kmnist"), at_hand) == (
        "kmnist is here as a part (13,284 of 60,000), too small for 48 clients of 1,000 images.")


# Ours beside theirs

CLIENT_SIDE = TableCell("client-side", "mnist")


def judged(ours: float | None, name: str = "comparative/table2", cell: TableCell = CLIENT_SIDE,
           measure: str = "ari") -> beside.Comparison:
    outcome = Outcome({each: [ours] for each in load(name).measures}, status="")
    made = beside.comparisons(load(name), {cell: outcome}, {})
    return next(line for line in made if (line.row, line.column, line.measure) == (*cell, measure))


def test_a_line_passes_inside_its_band() -> None:
    """ARI 0.7 is printed, the band is 0.1; where it fails, the known reason stands beside it."""
    assert judged(0.79).verdict == "pass"
    assert judged(0.79).why == ()
    assert judged(0.59).verdict == "fail"
    assert judged(0.81).verdict == "fail"
    assert "luck" in judged(0.81).why[0]
    assert round(judged(0.81).difference or 0, 2) == 0.11


def test_a_target_that_nobody_reached_agrees_with_a_printed_dash() -> None:
    """A dash passes for never, and fails for any number; never fails a printed number."""
    dash = {"name": "pacfl/table5", "cell": TableCell("fedavg", "cifar10"), "measure": "rounds"}
    assert judged(None, **dash).verdict == "pass"  # type: ignore[arg-type]
    assert judged(60, **dash).verdict == "fail"  # type: ignore[arg-type]
    number = {**dash, "cell": TableCell("pacfl", "cifar10")}  # 24 is printed, half of it is allowed
    assert judged(36, **number).verdict == "pass"  # type: ignore[arg-type]
    assert judged(None, **number).verdict == "fail"  # type: ignore[arg-type]
    assert beside.texts(judged(None, **number))[:2] == ("never", "24")  # type: ignore[arg-type]


def test_bands_are_numbers_shares_or_the_wider_of_both() -> None:
    """3 points, half of what is printed, max(0.01, 0.04 %)."""
    assert beside.allowed(3, 80) == 3
    assert beside.allowed("50%", 24) == 12
    assert beside.allowed([0.01, "0.04%"], 100) == pytest.approx(0.04)
    assert beside.allowed([0.01, "0.04%"], 1) == 0.01


# Cost


def test_rounds_and_bytes_to_a_target() -> None:
    """The first round that reaches it; bytes of all phases until then, evaluation left out."""
    def record(round: int, score: float | None, higher: bool = True) -> dict[str, object]:
        pages = {"train": {"down": {"model": 100}, "up": {"model": 100}}, "evaluate": {"down": {"model": 7}}}
        return {"round": round, "bytes": pages if round >= 0 else {"signature": {"up": {"basis": 5}}},
                **({} if score is None else {"score": {"value": score}}),
                "metric": Metric("", higher_is_better=higher)._asdict()}

    records = [record(-1, None), record(0, 0.4), record(1, None), record(2, 0.8), record(3, 0.7)]
    assert cost.rounds_to(records, 0.75) == 3
    assert cost.bytes_to(records, 0.75) == 605
    assert cost.rounds_to(records, 0.9) is cost.bytes_to(records, 0.9) is None
    falling = [record(0, 0.4, False), record(1, 0.2, False)]
    assert [cost.rounds_to(falling, target) for target in (0.4, 0.3, 0.1)] == [1, 2, None]


def test_the_megabit_formula_gives_tables_9_and_10_of_pacfl() -> None:
    """All 42 filled cells within max(0.01 Mb, 0.04 %), with whole rounds; no run is needed."""
    made = [line for name in ("pacfl/table9", "pacfl/table10") for line in beside.comparisons(load(name), {}, {})
            if line.measure == "formula"]
    assert Counter(line.verdict for line in made) == {"pass": 42}
    assert cost.megabits("fedavg", 1, "resnet9", share=0.5) == pytest.approx(211.88, abs=0.04)  # of one model


# Tables without runs


def test_distances_between_gaussians() -> None:
    """Zero for equal samples; Bhattacharyya and KL rise as printed; the angle rises with the covariance."""
    points = np.random.default_rng(0).standard_normal((50, 4))
    for kind, distance in computed.SAMPLE_DISTANCES.items():
        assert distance(points, points) == pytest.approx(0, abs=1e-3), kind
    made = [computed.gaussians(TableCell(row, "5S>2S"), None, seed)["rises"]  # type: ignore[arg-type]
            for row in ("bhattacharyya", "kl", "smallest") for seed in range(3)]
    assert made == [1.0] * 9
    table = load("pacfl/table6")
    for row in ("bhattacharyya", "kl"):  # the printed values are near: mean 1 and unit covariance may be theirs
        found = [computed.gaussians(TableCell(row, "2S"), None, seed)["distance"] for seed in range(5)]  # type: ignore[arg-type]
        assert np.mean(found) == pytest.approx(table.printed[TableCell(row, "2S"), "distance"].value, rel=0.1)


@pytest.mark.slow
@pytest.mark.skipif(not REAL.is_dir(), reason=f"no data sets in {REAL}: set UMBEL_DATA")
def test_angles_between_four_data_sets_are_the_printed_ones(umbel: Umbel, tmp_path: Path) -> None:
    """PACFL's Table 1: column angles within 2 degrees of 6.13, 45.79, 66.26, 43.42, 64.86, 43.36."""
    assert umbel("reproduce", "pacfl/table1", "--only", "column", "--data-dir", REAL).code == 0
    found = json.loads((tmp_path / "runs" / "reproduce" / "pacfl-table1" / "table.json").read_text())["lines"]
    assert [line["verdict"] for line in found if line["row"] == "column"] == ["pass"] * 6
    assert all(line["verdict"] == "not run" for line in found if line["row"] != "column")


# The command


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A paper of one's own."""
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    return path


def told(folder: Path) -> dict[tuple[str, str, str], dict[str, object]]:
    lines = json.loads((folder / "table.json").read_text())["lines"]
    return {(line["row"], line["column"], line["measure"]): line for line in lines}


def test_a_table_is_run_shown_and_kept(umbel: Umbel, tiny: Path, tmp_path: Path) -> None:
    """Ours, theirs, difference, verdict and reason; a missing data set says so, and the other cells go on."""
    code, out, err = umbel("reproduce", "tiny.toml/table1", "--device", "cpu", "--jobs", 2)
    assert (code, err) == (0, "")
    folder = tmp_path / "runs" / "reproduce" / "tiny-table1"
    found = told(folder)
    assert set(found) == {("fedavg", "digits turned", "accuracy"), ("fedavg", "digits turned", "ari"),
                          ("solo", "digits turned", "accuracy"), ("fedavg", "mnist turned", "accuracy"),
                          ("solo", "mnist turned", "accuracy")}
    line = found["fedavg", "digits turned", "accuracy"]
    assert (line["verdict"], line["theirs"], line["theirs_spread"], line["ours_over"]) == ("pass", 50, 1, "clients")
    assert 0 < float(line["ours"]) < 100  # type: ignore[arg-type]
    assert found["fedavg", "digits turned", "ari"]["verdict"] == "fail"
    assert found["fedavg", "digits turned", "ari"]["why"] == ["One model has no clusters."]
    assert found["solo", "digits turned", "accuracy"]["verdict"] == ""
    missing = found["solo", "mnist turned", "accuracy"]
    assert missing["verdict"] == "skipped"
    assert "The data set 'mnist' was not found" in missing["why"][0]  # type: ignore[index]
    assert "1 pass, 1 fail, 2 skipped." in out
    assert "Pass: accuracy, % within ±100; ari within ±0.1." in out
    assert (folder / "table.md").read_text().startswith("# tiny.toml/table1: Table 1\n")
    assert len(list(csv.DictReader((folder / "table.csv").read_text().splitlines()))) == len(found)


def test_a_table_without_runs_is_computed_whatever_is_asked(umbel: Umbel, tmp_path: Path) -> None:
    """--show must not leave a table of cells that were not run where a computed one was."""
    common = ("reproduce", "pacfl/table6", "--out", "t")
    assert umbel(*common).code == 0
    before = (tmp_path / "t" / "table.json").read_text()
    assert "not run" not in umbel(*common, "--show").out
    assert (tmp_path / "t" / "table.json").read_text() == before


def test_finished_cells_are_kept_and_the_others_are_not_run(umbel: Umbel, tiny: Path, tmp_path: Path) -> None:
    """--only runs some cells and prints all; the next call runs what is missing and nothing twice."""
    common = ("reproduce", "tiny.toml/table1", "--device", "cpu", "--out", "t")
    assert umbel(*common, "--only", "solo").code == 0
    assert told(tmp_path / "t")["fedavg", "digits turned", "accuracy"]["verdict"] == "not run"
    result = next((tmp_path / "t").glob("solo*/result.json"))
    before = result.stat().st_mtime_ns
    assert "not run" in umbel(*common, "--show").out
    said = umbel(*common)
    assert "1/1  fedavg, digits turned, seed 0" in said.out
    assert told(tmp_path / "t")["fedavg", "digits turned", "accuracy"]["verdict"] == "pass"
    assert result.stat().st_mtime_ns == before
    recipe = result.parent / "recipe.toml"
    recipe.write_text(recipe.read_text().replace('device = "cpu"', 'device = "cuda"'))
    resealed(result.parent)
    assert umbel(*common, "--show").code == 0
    assert told(tmp_path / "t")["solo", "digits turned", "accuracy"]["ours"] is not None  # made on another machine
    recipe.write_text(recipe.read_text().replace("epochs = 1", "epochs = 3"))
    resealed(result.parent)
    assert umbel(*common).code == 1
    changed = told(tmp_path / "t")["solo", "digits turned", "accuracy"]
    assert changed["verdict"] == "failed"
    assert "is from another recipe: its 'epochs' is 3" in changed["why"][0]  # type: ignore[index]


@pytest.mark.slow
def test_more_seeds_give_a_spread(umbel: Umbel, tiny: Path, tmp_path: Path) -> None:
    """± is over seeds, and the rounds that were cut are in the head."""
    common = ("reproduce", "tiny.toml/table1", "--device", "cpu", "--only", "fedavg digits", "--rounds", 1)
    assert umbel(*common, "--seeds", 2, "--out", "t").code == 0
    line = told(tmp_path / "t")["fedavg", "digits turned", "accuracy"]
    assert line["ours_over"] == "2 seeds"
    assert line["ours_spread"] is not None
    head = json.loads((tmp_path / "t" / "table.json").read_text())["head"]
    assert "Rounds: 1 of 2 of the paper's." in head
    assert "±: printed over seeds, ours over 2 seeds." in head


def test_a_cell_that_fails_says_its_sentence_and_the_others_go_on(umbel: Umbel, tiny: Path, tmp_path: Path) -> None:
    """A learning rate of 1e30 loses every answer; the table is shown and written, and the exit code is 1."""
    said = umbel("reproduce", "tiny.toml/table2", "--device", "cpu", "--out", "t")
    assert (said.code, said.err) == (1, "")
    assert "1 failed" in said.out
    found = told(tmp_path / "t")
    assert found["fedavg hot", "digits", "accuracy"]["verdict"] == "failed"
    assert "3 rounds in a row were lost" in found["fedavg hot", "digits", "accuracy"]["why"][0]  # type: ignore[index]
    assert found["fedavg", "digits", "accuracy"]["ours"] is not None


@pytest.mark.slow
def test_the_cost_of_forming_clusters(umbel: Umbel, tiny: Path, tmp_path: Path) -> None:
    """A trajectory is 20 numbers, 0.078 KB; the other methods send a model, or k losses; times are split by place."""
    assert umbel("reproduce", "tiny.toml/table3", "--device", "cpu", "--out", "t").code == 0
    found = told(tmp_path / "t")
    assert found["cflgt", "digits turned", "upload"]["verdict"] == "pass"
    sent = {row: found[row, "digits turned", "upload"]["ours"] for row in ("flhc", "fedsem", "ifca")}
    assert sent == {"flhc": 4 * 15_010 / 1024, "fedsem": 4 * 15_010 / 1024, "ifca": 16 / 1024}
    for row in ("cflgt", "flhc", "fedsem", "ifca"):
        assert all(float(found[row, "digits turned", f"{side}_seconds"]["ours"]) > 0  # type: ignore[arg-type]
                   for side in ("client", "server"))


def test_newcomers_and_targets_are_read_from_runs(umbel: Umbel, tiny: Path, tmp_path: Path) -> None:
    """Of those who joined late, the judged accuracy; rounds and megabits to a target that is reached at once."""
    assert umbel("reproduce", "tiny.toml/table4", "--device", "cpu", "--out", "t").code == 0
    ours = {(row, measure): line["ours"] for (row, _, measure), line in told(tmp_path / "t").items()}
    folder = next((tmp_path / "t").glob("pacfl*"))
    late = json.loads((folder / "clusters.json").read_text())["clients"][-2:]
    tuned = 100 * sum(each["score"]["fine_tuned"] for each in late) / 2
    assert ours["pacfl", "newcomers"] == pytest.approx(tuned)
    assert ours["fedavg", "newcomers"] is not None
    assert ours["fedavg", "rounds"] == 1
    assert ours["fedavg", "megabits"] == pytest.approx(2 * 62_006 * 32 / 1e6)
    assert ours["lg", "megabits"] == pytest.approx(2 * 11_014 * 32 / 1e6)
    assert (ours["fedavg", "clusters"], ours["fedavg", "largest"], ours["fedavg", "cut"]) == (1, 8, None)
    assert ours["pacfl", "cut"] is not None


@pytest.mark.parametrize(("words", "sentence"), [
    ("comparative/tabel2", "There is no table 'comparative/tabel2'. Did you mean 'comparative/table2'?"),
    ("compartive/table2", "There is no table 'compartive/table2'. Did you mean 'comparative/table2'?"),
    ("tiny.toml/tabel3", "There is no table 'tiny.toml/tabel3'. Did you mean 'tiny.toml/table3'?"),
    ("none.toml/table3", "The file none.toml cannot be read: No such file or directory."),
    ("flag/table2 --only mnst", "There is no cell of flag/table2 with 'mnst'."),
    ("flag/table2 --device gpu", "must be 'auto' or 'cpu' or 'cuda'. Got 'gpu' instead."),
])
def test_bad_input_is_one_sentence(words: str, sentence: str, umbel: Umbel, tiny: Path, tmp_path: Path) -> None:
    """Exit code 2, and nothing is written."""
    before = snapshot(tmp_path)
    code, out, err = umbel("reproduce", *words.split())
    assert (code, out) == (2, "")
    assert err.startswith("Error: ")
    assert err.count("\n") == 1
    assert sentence in err
    assert snapshot(tmp_path) == before


def test_a_run_folder_is_no_place_for_a_table(umbel: Umbel, tiny: Path) -> None:
    """It holds a recipe of its own."""
    assert umbel("run", "fedavg", *SMALL, "--out", "r", "--quiet").code == 0
    said = umbel("reproduce", "tiny.toml/table1", "--out", "r")
    assert (said.code, "It is a run itself: choose another --out." in said.err) == (2, True)


@pytest.mark.parametrize("left_out", ['title = "A paper of one table"\n', 'title = "Table 1"\n'])
def test_a_table_without_a_title_is_one_sentence(left_out: str, umbel: Umbel, tmp_path: Path) -> None:
    """Of its own or of its file."""
    assert left_out in TINY
    (tmp_path / "tiny.toml").write_text(TINY.replace(left_out, ""))
    said = umbel("reproduce", "tiny.toml/table1", "--out", "r")
    assert said.code == 2
    assert said.err == ("Error: A table has a title, and its file has one. At least one of them is missing for"
                        " tiny.toml/table1.\n")


LONG = ("reproduce", "tiny.toml/table1", "--only", "fedavg digits", "--device", "cpu", "--jobs", "1")


def begun(folder: Path) -> "subprocess.Popen[str]":
    """A table of one long run, which has done some rounds."""
    (folder / "tiny.toml").write_text(TINY.replace("rounds = 2", "rounds = 500"))
    process = start(*LONG, cwd=folder)
    limit = time.monotonic() + 60
    while not list(folder.glob("runs/reproduce/tiny-table1/*/rounds.jsonl")) and time.monotonic() < limit:
        time.sleep(0.05)
    return process


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_keeps_what_is_finished_and_says_how_to_go_on(by: signal.Signals, tmp_path: Path) -> None:
    """Exit code 128 and the signal's number; the run has ended as well, and kept its checkpoint."""
    process = begun(tmp_path)
    process.send_signal(by)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + by
    assert err == f"Interrupted with 0 of 1 runs finished. Go on with: {shlex.join(['umbel', *LONG])}\n"
    folder = next((tmp_path / "runs" / "reproduce" / "tiny-table1").glob("fedavg*"))
    RunFolder.open(folder).close()  # nobody holds its lock
    assert (folder / "checkpoint.json").exists()
    assert not (folder / "result.json").exists()


@pytest.mark.slow
def test_a_table_that_was_killed_goes_on_at_once(tmp_path: Path) -> None:
    """Its runs end with it: the same command finds their folders free, and finishes the table."""
    process = begun(tmp_path)
    process.kill()
    process.communicate(timeout=60)
    folder = next((tmp_path / "runs" / "reproduce" / "tiny-table1").glob("fedavg*"))
    RunFolder.open(folder).close()
    assert not (folder / "result.json").exists()
    again = start(*LONG, cwd=tmp_path)
    out, err = again.communicate(timeout=120)
    assert (again.returncode, err) == (0, "")
    assert "1/1  fedavg, digits turned, seed 0" in out
    assert told(tmp_path / "runs" / "reproduce" / "tiny-table1")["fedavg", "digits turned", "accuracy"]["ours"]


def test_a_run_that_gives_no_reason_says_how_it_ended() -> None:
    """As one that is killed by the kernel, for memory."""
    assert cells._sentence("", -9) == "The run was ended by SIGKILL, as where memory runs out, and gave no reason."
    assert cells._sentence("Error: It is so.\n", 2) == "It is so."
    assert cells._sentence("Traceback\nKeyError: 'a'\n", 1) == "KeyError: 'a' (exit code 1)."


def test_list_tables(umbel: Umbel) -> None:
    """Every table with its title."""
    said = umbel("list", "tables")
    assert said.code == 0
    assert all(name in said.out for name in names())
