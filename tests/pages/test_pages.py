import json
import re
import struct
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from run_folders import fake_run
from terminal import SMALL, Umbel, snapshot

from umbel.errors import UmbelError
from umbel.pages import figures, page, plots, views
from umbel.pages.load import expand, load
from umbel.runs.reasons import reason, steadiness_said


def sections(text: str) -> list[str]:
    """Titles of the figures, in order."""
    return re.findall(r"<h3>(.*?)</h3>", text)


# Real runs


def test_a_comparison_becomes_one_page(umbel: Umbel, tmp_path: Path) -> None:
    """`umbel report` on a comparison's folder: one file in it, with a figure for everything the runs know."""
    words = ("--scenario", "rotation-4", *SMALL, "--clients", 8)
    assert umbel("compare", "pacfl", "fedavg", *words, "--out", "c", "-q").code == 0
    code, out, err = umbel("report", "c")
    assert (code, out, err) == (0, "Report: c/report.html\n", "")
    text = (tmp_path / "c" / "report.html").read_text()
    assert sections(text) == [
        "Accuracy against rounds", "Accuracy against bytes", "Every client",
        "Dendrogram: drag the cut", "Distances between clients", "Map of clients",
        "Clusters against the truth", "Who holds which labels", "Who gains, who loses against FedAvg",
        "Map of clients", "Clusters against the truth", "Who holds which labels", "Accuracy of each client",
    ]
    assert "pacfl and fedavg on digits, rotation-4" in text
    run = load(tmp_path / "c" / "pacfl-s0")
    tree = views.dendrogram(run)
    assert tree is not None
    labels, ari = views.cut_at(tree, run, tree.start)  # where the page's cut stands at first
    assert len(set(zip(labels.tolist(), run.labels, strict=True))) == len(set(run.labels)) == labels.max() + 1
    assert ari == run.info["clusters"]["ari"]
    clusters = run.info["clusters"]
    assert f'<p class="lead">{reason(clusters)} {steadiness_said(clusters)}</p>' in unescape(text)
    assert "Tests said where this tree is split" in text
    assert "At first the line is where the method cut" not in text
    rows = [sum((client.holds or {}).values()) for client in run.clients]
    with np.load(tmp_path / "c" / "pacfl-s0" / "partition.npz") as plan:
        assert np.cumsum(rows).tolist() == plan["train_ends"].tolist()


def test_cflgt_shows_its_trajectories_and_a_tree_for_the_eye(umbel: Umbel, tmp_path: Path) -> None:
    """Affinity propagation has no dendrogram: the page says whose tree it is."""
    assert umbel("run", "cflgt", *SMALL, "--set", "pretrain=1", "--set", "cut=gate", "--set", "gate=0", "--out", "a",
                 "-q").code == 0
    assert umbel("report", "a", "--out", "deep/r.html").out == "Report: deep/r.html\n"
    text = (tmp_path / "deep" / "r.html").read_text()
    assert "Gradient trajectories" in sections(text)
    assert "groups these distances by other means" in text
    assert "Hopkins statistic" in text


def test_with_landmarks_the_page_draws_the_sample_and_says_so(umbel: Umbel, tmp_path: Path) -> None:
    """Tree, matrix and map are of the landmarks; the clusters and the table are of everybody."""
    words = ("--scenario", "rotation-4", *SMALL, "--clients", 8, "--set", "landmarks=5")
    assert umbel("run", "pacfl", *words, "--out", "pacfl", "-q").code == 0
    run = load(tmp_path / "pacfl")
    tree = views.dendrogram(run)
    assert tree is not None
    assert run.evidence.landmarks == len(tree.clients) == 5
    assert min(run.labels) >= 0
    text = unescape(page.write([run]))
    for sentence in ("The leaves are a sample of 5 clients;", "Every pair of a sample of 5 clients,",
                     "that the method measured between a sample of 5 clients;"):
        assert sentence in text
    assert "a sample of" not in page.write([load(fake_run(tmp_path / "whole"))])


# What is in the page


def test_a_method_without_evidence_has_fewer_figures(tmp_path: Path) -> None:
    """FedAvg measured nothing: no dendrogram, no distances, no curve; the map is of clients' last models."""
    text = page.write([load(fake_run(tmp_path / "a", "fedavg"))])
    assert sections(text) == ["Accuracy against rounds", "Accuracy against bytes", "Map of clients",
                              "Clusters against the truth", "Who holds which labels", "Accuracy of each client"]
    assert "clients' last local models" in unescape(text)


def test_an_older_folder_without_holds_leaves_the_labels_out(tmp_path: Path) -> None:
    """What a folder does not know is not drawn."""
    path = fake_run(tmp_path / "a")
    table = json.loads((path / "clusters.json").read_text())
    for client in table["clients"]:
        del client["holds"]
    (path / "clusters.json").write_text(json.dumps(table))
    assert "Who holds which labels" not in sections(page.write([load(path)]))


def test_without_true_groups_there_is_no_ari(tmp_path: Path) -> None:
    """No truth: no ARI beside the cut, no matrix against the truth."""
    text = page.write([load(fake_run(tmp_path / "a", known=False))])
    assert "Clusters against the truth" not in sections(text)
    assert 'data-shows="ari"' not in text


def test_text_of_a_run_cannot_become_markup(tmp_path: Path) -> None:
    """Names, scenarios and recipes are text, in HTML, in the data and in Plotly's little markup."""
    evil = "</script><img src=x onerror=alert(1)>"
    path = fake_run(tmp_path / "a", clients=3, names=[evil, "<b>b</b>", "%{x}"], scenario=evil,
                    params={"cut": "value", evil: evil})
    (path / "recipe.toml").write_text(evil)
    text = page.write([load(path)])
    assert "<img" not in text.replace(page.drawing_library(), "")
    assert text.count("</script>") == 4
    data = json.loads(re.findall(r'id="data">(.*?)</script>', text)[0])
    assert data["trees"]["t0"]["names"][0] == evil  # set as text by the script
    assert "<img" not in json.dumps(data["figures"])
    assert plots.plotly_text("<b>%{x}") == "&lt;b&gt;% {x}"


def test_data_of_the_script_are_exact_and_cannot_end_it(tmp_path: Path) -> None:
    """Heights must arrive to the last bit: a cut at a height is a cut at that height."""
    run = load(fake_run(tmp_path / "a", names=["</script>&", *[f"c{i}" for i in range(11)]]))
    tree = views.dendrogram(run)
    assert tree is not None
    (text,) = re.findall(r'id="data">(.*?)</script>', page.write([run]))
    assert not set("<>&") & set(text)
    assert json.loads(text)["trees"]["t0"]["links"] == tree.links[:, :3].tolist()


def test_only_our_own_files_are_not_escaped() -> None:
    """Style, script and drawing library: three places of a report, one of a diagnosis, which no run folder reaches."""
    texts = {path.name: path.read_text() for path in (files("umbel.pages") / "templates").iterdir()}
    safe = {name: found for name, text in texts.items() if (found := re.findall(r"{{ (\w+) \| safe }}", text))}
    assert safe == {"page.html": ["css", "script", "plotly"], "diagnosis.html": ["css"]}
    assert "".join(texts.values()).count("safe }}") == 4
    assert not any("autoescape" in text for text in texts.values())


def test_the_page_may_load_nothing(tmp_path: Path) -> None:
    """A policy forbids every load; nothing in the page asks for one."""
    text = page.write([load(fake_run(tmp_path / "a"))]).replace(page.drawing_library(), "")
    assert "default-src 'none'" in text
    assert not re.search(r"""(src|href)=["']?(https?:)?//|@import|url\(""", text)


def test_without_plotly_there_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """It names the extra to install."""
    monkeypatch.setattr(page, "find_spec", lambda name: None)
    with pytest.raises(UmbelError, match=r"pip install 'umbel\[report\]'"):
        page.drawing_library()


def test_without_jinja_there_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The same for the library that writes the page."""
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(UmbelError, match=r"^A report is written by Jinja.*pip install 'umbel\[report\]'\.$"):
        page.write([load(fake_run(tmp_path / "a"))])


def test_jinja_is_needed_only_to_write_a_page() -> None:
    """All other commands start without it."""
    code = "import sys; sys.modules['jinja2'] = None; import umbel.cli, umbel.pages.page"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_hundred_clients_add_little_to_the_library(tmp_path: Path) -> None:
    """100 clients, 200 rounds, three runs: the size is the drawing library's, and little more."""
    runs = [load(fake_run(tmp_path / method, method, clients=100, rounds=200, groups=5))
            for method in ("fedavg", "pacfl", "cflgt")]
    assert len(page.write(runs)) < len(page.drawing_library()) + 0.7e6


# What figures show


def test_runs_that_differ_by_seed_are_one_entrant(tmp_path: Path) -> None:
    """Seeds share a name and a curve with its spread; other settings make another name."""
    runs = [load(fake_run(tmp_path / "a", seed=0)), load(fake_run(tmp_path / "b", seed=1, gain=0.05)),
            load(fake_run(tmp_path / "c", params={"rank": 5, "cut": "value", "lr": 0.01})),
            load(fake_run(tmp_path / "d", "fedavg"))]
    entrants = views.entrants(runs)
    assert [(entrant.label, len(entrant.runs)) for entrant in entrants] == [
        ("pacfl (rank 3)", 2), ("pacfl (rank 5)", 1), ("fedavg", 1)]
    assert list(views.run_names(entrants).values()) == [
        "pacfl (rank 3), seed 0", "pacfl (rank 3), seed 1", "pacfl (rank 5)", "fedavg"]
    curve = views.curve(entrants[0])
    assert curve.rounds == [1, 2, 3, 4, 5]
    assert curve.megabytes == pytest.approx([0.9, 1.7, 2.5, 3.3, 4.1])  # the signature first; no evaluation
    assert curve.low[-1] == pytest.approx(0.70)
    assert curve.high[-1] == pytest.approx(0.75)


def test_gains_are_paired_by_partition_and_seed(tmp_path: Path) -> None:
    """Gains are counted against the FedAvg run of the same partition and seed, and no other."""
    plain, other = load(fake_run(tmp_path / "a", "fedavg")), load(fake_run(tmp_path / "b", "fedavg", seed=1))
    run = load(fake_run(tmp_path / "c", gain=0.05))
    assert views.baseline(run, [other, plain, run]) is plain
    assert views.baseline(run, [other, run]) is None
    assert views.baseline(plain, [plain, other]) is None
    assert views.gain_sentence(views.gains(run, plain), run.metric) == (
        "12 of 12 clients gain, 0 lose, 0 stay within half a point; on average +5.0 points.")


def test_the_true_group_of_a_leaf_is_its_clients(tmp_path: Path) -> None:
    """Clients described in another order than they are listed in: the same cut has the same ARI."""
    run = load(fake_run(tmp_path / "a"))
    assert run.evidence.proximity is not None
    order = np.array([0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11])
    other = replace(run, evidence=replace(run.evidence, who=order, linkage=None,
                                          proximity=run.evidence.proximity[np.ix_(order, order)]))
    trees = [views.dendrogram(each) for each in (run, other)]
    cuts = [views.cut_at(tree, run, 2.0)[1] for tree in trees if tree is not None]
    assert cuts == [pytest.approx(run.info["clusters"]["ari"])] * 2


def test_the_plane_keeps_distances_that_fit_it(tmp_path: Path) -> None:
    """Clients on a line stay as far apart as they were measured."""
    run = load(fake_run(tmp_path / "a"))
    plane = views.plane(run)
    assert plane is not None
    assert run.evidence.proximity is not None
    apart = np.linalg.norm(plane.points[:, None] - plane.points[None], axis=2)
    assert apart == pytest.approx(run.evidence.proximity, abs=1e-6)
    assert plane.share == pytest.approx(1)


def test_truth_is_counted_against_clusters(tmp_path: Path) -> None:
    """Rows are groups, columns clusters, and everybody is counted once."""
    counts = views.against_truth(load(fake_run(tmp_path / "a")))
    assert counts is not None
    assert counts[2].sum() == 12
    assert counts[2].sum(1).tolist() == [4, 4, 4]


def test_a_large_matrix_is_averaged_to_what_a_screen_shows() -> None:
    """1,000 rows become 400; the mean stays."""
    values = np.arange(1_000_000.0).reshape(1000, 1000)
    coarse, names = plots._coarse(values, [str(i) for i in range(1000)])
    assert coarse.shape == (400, 400)
    assert names[0] == "0 … 1"
    assert coarse[0, 0] == values[:2, :2].mean()


# Figures for a paper


def test_figures_are_written_in_a_papers_size(umbel: Umbel, tmp_path: Path) -> None:
    """Each figure as PNG, 3.4 inches wide at 300 dpi, and as SVG."""
    for method in ("fedavg", "pacfl"):
        fake_run(tmp_path / "runs" / method, method, names=[*[f"c{i}" for i in range(10)], "$x_1", "_<b>"])
    assert umbel("report", "runs", "--figures", "f").out == "Report: runs/report.html\nFigures: 26 files in f\n"
    assert sorted(p.stem for p in (tmp_path / "f").glob("pacfl*.png")) == [
        f"pacfl-{name}" for name in ("dendrogram", "distances", "gains", "labels", "map", "sweep", "truth")]
    width, _ = struct.unpack(">II", (tmp_path / "f" / "pacfl-dendrogram.png").read_bytes()[16:24])
    assert width == 1020
    assert all(ET.parse(path).getroot().tag.endswith("svg") for path in (tmp_path / "f").glob("*.svg"))


def test_nothing_is_written_or_read_behind_a_link(umbel: Umbel, tmp_path: Path) -> None:
    """Not the page, not a figure, not a folder of them; and a run that is a link is no part of a comparison."""
    fake_run(tmp_path / "runs")
    outside = tmp_path / "outside"
    fake_run(outside / "run")
    (outside / "file").write_text("mine")
    before = snapshot(outside)
    (tmp_path / "f").mkdir()
    for link, to in (("page.html", outside / "file"), ("folder.html", outside), ("g", outside), ("f/clients.png",
                     outside / "file"), ("both/run", outside / "run")):
        (tmp_path / link).parent.mkdir(exist_ok=True)
        (tmp_path / link).symlink_to(to)
    for words, said in ((("runs", "--out", "page.html"), "page.html must be a regular file. It is a link"),
                        (("runs", "--out", "folder.html"), "folder.html must be a regular file. It is a link"),
                        (("runs", "--figures", "g"), "The folder g must be one itself. It is a link"),
                        (("runs", "--figures", "f"), "f/clients.png must be a regular file. It is a link"),
                        (("both",), "The folder both/run must be one itself. It is a link")):
        told = umbel("report", *words)
        assert told.code == 2
        assert said in " ".join(told.err.split())
    assert snapshot(outside) == before


def test_figures_are_the_same_bytes_every_time(tmp_path: Path) -> None:
    """No dates, no random names inside; CFLGT's trajectories among them."""
    run = load(fake_run(tmp_path / "a", "cflgt", clients=4, groups=2))
    first, again = ([path.read_bytes() for path in figures.write([run], tmp_path / name)] for name in ("f", "g"))
    assert first == again
    assert (tmp_path / "f" / "cflgt-trajectories.svg").exists()


def test_the_paper_has_the_pages_colours() -> None:
    """One palette, chosen for colour-blind readers, in both."""
    css = (files("umbel.pages") / "page.css").read_text()
    assert tuple(re.findall(r"--c\d: (#[0-9a-f]{6})", css)[:8]) == figures.PALETTE


# Bad input


def emptied(name: str) -> Callable[[Path], None]:
    return lambda path: (path / name).write_bytes(b"")


def gone(name: str) -> Callable[[Path], None]:
    return lambda path: (path / name).unlink()


def changed(name: str, old: str, new: str) -> Callable[[Path], None]:
    return lambda path: (path / name).write_text((path / name).read_text().replace(old, new))


def shorter(path: Path) -> None:
    """The last round is missing."""
    lines = (path / "rounds.jsonl").read_text().splitlines(keepends=True)
    (path / "rounds.jsonl").write_text("".join(lines[:-1]))


def cut_evidence(path: Path) -> None:
    content = (path / "evidence.safetensors").read_bytes()
    (path / "evidence.safetensors").write_bytes(content[: len(content) // 2])


WRONG: dict[str, tuple[Callable[[Path], None], str]] = {
    "not ours": (gone("recipe.toml"), "must be a run of umbel, or hold some. There is no recipe.toml in it."),
    "unfinished": (gone("result.json"), "is not finished. Go on with: umbel run --resume --out"),
    "older": (
        changed("result.json", '"schema": 2', '"schema": 0'), "The 'schema' in a/result.json must be 2. Got 0"),
    "of no version": (
        changed("result.json", '"schema"', '"other"'), "The 'schema' in a/result.json must be 2. Got nothing"),
    "newer": (
        changed("result.json", '"schema": 2', '"schema": 3'), "a/result.json was written by a newer umbel"),
    "no object": (
        lambda path: (path / "result.json").write_text("[1]"), "must be a table with schema, status"),
    "empty result": (emptied("result.json"), "must hold JSON as umbel writes it."),
    "no clusters": (gone("clusters.json"), "The file a/clusters.json cannot be read: No such file"),
    "other clients": (
        changed("result.json", '"clients": 12', '"clients": 13'), "must have as many clients, result.json 13."),
    "a key less": (
        changed("result.json", '"headline"', '"line"'), "The 'headline' in a/result.json must be \"cluster_model\" or"),
    "no rounds": (gone("rounds.jsonl"), "must have the rounds -1 to 4, in order."),
    "a round less": (shorter, "must have the rounds -1 to 4, in order."),
    "rounds cut": (changed("rounds.jsonl", "}\n", "\n"), "Line 1 of a/rounds.jsonl must hold JSON"),
    "evidence cut": (cut_evidence, "a/evidence.safetensors must be a safetensors file."),
    "recipe not text": (
        lambda path: (path / "recipe.toml").write_bytes(b"\xff\xfe"), "a/recipe.toml must hold text in UTF-8."),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_folder_that_cannot_be_reported_is_one_sentence(case: str, umbel: Umbel, tmp_path: Path) -> None:
    """Exit code 2, one line on stderr, nothing written."""
    spoil, sentence = WRONG[case]
    spoil(fake_run(tmp_path / "a"))
    before = snapshot(tmp_path)
    code, out, err = umbel("report", "a")
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert err.startswith("Error: ")
    assert sentence in err
    assert snapshot(tmp_path) == before


def test_no_folder_and_a_file_are_told_apart(tmp_path: Path) -> None:
    """Both are one sentence."""
    (tmp_path / "file").touch()
    with pytest.raises(UmbelError, match=r"A report is made of run folders. There is none at .*/none\."):
        load(tmp_path / "none")
    with pytest.raises(UmbelError, match=r"It is a file at .*/file\."):
        load(tmp_path / "file")


def test_the_other_runs_are_reported_all_the_same(umbel: Umbel, tmp_path: Path) -> None:
    """A sentence for each folder that cannot be; the page shows the rest, and the exit code tells."""
    for name in ("a", "b", "c"):
        fake_run(tmp_path / name)
    gone("result.json")(tmp_path / "a")
    emptied("clusters.json")(tmp_path / "c")
    code, out, err = umbel("report", "a", "b", "c", "none")
    assert (code, out, err.count("\n")) == (2, "Report: report.html\n", 3), err
    assert "b" in (tmp_path / "report.html").read_text()


def test_a_comparison_stands_for_its_runs(tmp_path: Path) -> None:
    """In the order of its methods; an empty folder stands for itself, so that it is complained of."""
    for name in ("b-s0", "a-s10", "a-s2"):
        fake_run(tmp_path / "c" / name)
    assert [path.name for path in expand(tmp_path / "c")] == ["a-s10", "a-s2", "b-s0"]
    (tmp_path / "c" / "compare.json").write_text('[{"method": "b"}, {"method": "a"}]')
    assert [path.name for path in expand(tmp_path / "c")] == ["b-s0", "a-s10", "a-s2"]
    (tmp_path / "empty").mkdir()
    assert expand(tmp_path / "empty") == [tmp_path / "empty"]


def test_the_help_explains_every_option(umbel: Umbel) -> None:
    """RUNS are explained in the text, options in their table."""
    out = umbel("report", "--help").out
    assert "RUNS are run folders" in out
    assert all(option in out for option in ("--out", "--figures", "--open"))


def test_an_oracle_alone_has_a_story(tmp_path: Path) -> None:
    """Where nobody else ran, the lead speaks of the oracle as the numbers below it do."""
    text = unescape(page.write([load(fake_run(tmp_path / "a", "oracle"))]))
    assert "No client of these runs could be scored" not in text
    assert text.count("The oracle, which is told") == 0
    assert "on clients' own test rows" in text
