"""Sets whose clients are those of life: read from small files in their published forms, and from the real ones."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from real_data import REAL, needs_data

import umbel
from umbel.data import natural, sources
from umbel.data.natural import ACTIVITIES, HEART, HOSPITALS, MEASURES, NATURAL, WINDS, WISDM
from umbel.data.plans import load_plan, realise, save_plan
from umbel.data.scenarios import draw
from umbel.data.sources import DATASETS, Dataset, open_dataset
from umbel.engines.local import LocalClients
from umbel.engines.on_disk import clients_from, write_clients
from umbel.errors import UmbelError

CPU = torch.device("cpu")
HEADER = "No,year,month,day,hour,PM2.5,PM10,SO2,NO2,CO,O3,TEMP,PRES,DEWP,RAIN,wd,WSPM,station"


@pytest.fixture(autouse=True)
def nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the folder of a test counts."""
    monkeypatch.delenv("UMBEL_DATA", raising=False)


def refusal(name: str, folder: Path) -> str:
    with pytest.raises(UmbelError) as caught:
        open_dataset(name, folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Heart disease


def patient(age: str = "63.0", chol: str = "233.0", thal: str = "6.0", num: str = "0") -> str:
    return f"{age},1.0,4.0,145.0,{chol},1.0,2.0,150.0,0.0,2.3,3.0,0.0,{thal},{num}"


def hospitals(folder: Path, rows: int = 8) -> None:
    """As many patients in each, half of them ill, in four degrees."""
    for hospital in HOSPITALS:
        lines = [patient(age=f"{40 + k}.0", num=str((0, 1, 0, 4)[k % 4])) for k in range(rows)]
        (folder / f"processed.{hospital}.data").write_text("\n".join(lines) + "\n")


def test_heart_disease_is_read_as_it_is_published(tmp_path: Path) -> None:
    """Four files of 14 columns; a quarter of each class of each hospital is tested on; degrees of illness are one."""
    hospitals(tmp_path)
    found = open_dataset("heart-disease", tmp_path)
    assert found.clients == HOSPITALS
    assert found.label == "heart-disease (24 of 690)"
    assert np.bincount(found.owners[0]).tolist() == [6, 6, 6, 6]
    assert np.bincount(found.owners[1] * 2 + found.y_test).tolist() == [1] * 8
    assert found.levels == (0, 3, 5, 0, 0, 3, 4, 0, 3, 0, 4, 5, 4)
    assert sorted(np.concatenate([found.x_train, found.x_test])[:, 0].tolist()) == sorted(4 * [*range(40, 48)])


def test_what_is_missing_of_a_patient_is_a_constant_or_a_level_of_its_own() -> None:
    """A cholesterol of 0 was not measured; a thal that is none of the three is missing, as one that is not there."""
    nan = np.nan
    rows = np.array([[63, 1, 4, 145, 233, 1, 2, 150, 0, 2.3, 3, 0, 6],
                     [nan, 0, 1, 0, 0, nan, 0, nan, 1, nan, nan, nan, 0],
                     [50, 1, 2, 120, 200, 0, 1, 140, 0, -1, 1, 3, nan]])
    assert natural.prepared_heart(rows).tolist() == [
        [63, 1, 3, 145, 233, 1, 2, 150, 0, np.float32(2.3), 2, 0, 1],
        [54, 0, 0, 130, 238.5, 2, 0, 140, 1, 0.5, 3, 4, 3],
        [50, 1, 1, 120, 200, 0, 1, 140, 0, -1, 0, 3, 3],
    ]
    assert list(HEART)[4] == "chol"


def test_a_hospital_that_is_not_there_and_a_column_too_few_are_named(tmp_path: Path) -> None:
    """One sentence each."""
    hospitals(tmp_path)
    (tmp_path / "processed.va.data").unlink()
    assert "must hold processed.va.data beside processed.cleveland.data" in refusal("heart-disease", tmp_path)
    (tmp_path / "processed.va.data").write_text("1,2,3\n")
    assert "processed.va.data' must have 14 columns, the last one the target." in refusal("heart-disease", tmp_path)
    (tmp_path / "processed.va.data").write_text(patient(age="old"))
    assert "processed.va.data' must be a whole and readable CSV file" in refusal("heart-disease", tmp_path)


# WISDM


def walks(folder: Path, people: tuple[int, ...] = (33, 7), each: int = 8) -> None:
    """Every person walks and sits; a peak of the first row was not found."""
    heads = ["UNIQUE_ID", "user", *WISDM, "class"]
    numeric = [f'@attribute "{name}" numeric' for name in WISDM]
    users = " , ".join(f'"{person}"' for person in people)
    classes = " , ".join(f'"{name}"' for name in ACTIVITIES)
    lines = ["@relation activities", "", '@attribute "UNIQUE_ID" numeric', f'@attribute "user" {{{users}}} ', *numeric,
             f"@attribute class{{ {classes} }}", "", "@data"]
    for k in range(each * len(people)):
        row = [str(k), str(people[k % len(people)]), *["0.5"] * len(WISDM), ("Walking", "Sitting")[k // 2 % 2]]
        row[heads.index("XPEAK")] = "?" if k == 0 else "100"
        lines.append(",".join(row))
    (folder / "WISDM_ar_v1.1_transformed.arff").write_text("\n".join(lines) + "\n")


def test_wisdm_is_read_as_it_is_published(tmp_path: Path) -> None:
    """Attributes by name, the last one without a space behind it; people in the order of their numbers; a peak that was
    not found is the mean of all.
    """
    walks(tmp_path)
    found = open_dataset("wisdm", tmp_path)
    assert found.clients == ("person 07", "person 33")
    assert found.objective == umbel.Classify(6, labels=ACTIVITIES)
    assert [np.bincount(own).tolist() for own in found.owners] == [[6, 6], [2, 2]]
    peaks = np.concatenate([found.x_train, found.x_test])[:, WISDM.index("XPEAK")]
    assert sorted(peaks.tolist()) == [100] * 15 + [1834]
    assert set(np.concatenate([found.y_train, found.y_test]).tolist()) == {0, 4}


def test_another_arff_file_is_refused(tmp_path: Path) -> None:
    """By the attributes that it must have."""
    (tmp_path / "WISDM_ar_v1.1_transformed.arff").write_text("@relation x\n@attribute user numeric\n@data\n1\n")
    assert "must be WISDM's ARFF file: the attributes user, X0 to RESULTANT and class" in refusal("wisdm", tmp_path)


# Beijing


def station(folder: Path, name: str, start: str, hours: int, skip: int = -1, lost: int = -1) -> None:
    """PM2.5 counts the hours; one hour may be skipped, and one PM2.5 be lost."""
    lines = [HEADER]
    for k, hour in enumerate(np.datetime64(start, "h") + np.arange(hours)):
        date = hour.item()
        pm = "NA" if k == lost else str(k)
        if k != skip:
            lines.append(f"{k + 1},{date.year},{date.month},{date.day},{date.hour},{pm},8,4,7,300,77,-0.7,1023,-18.8,0,"
                         f"{'NA' if k == 1 else 'E'},4.4,{name}")
    (folder / f"PRSA_Data_{name}_20130301-20170228.csv").write_text("\n".join(lines) + "\n")


def test_beijing_is_read_as_it_is_published(tmp_path: Path) -> None:
    """24 hours, then PM2.5 1, 6 and 24 hours after the last; rows train to the end of 2015 and test from 2016 on."""
    for name in ("Wanliu", "Dongsi"):
        station(tmp_path, name, "2015-12-25T00", 24 * 14, lost=99)
    found = open_dataset("beijing-air", tmp_path)
    assert found.clients == ("Dongsi", "Wanliu")
    assert found.x_train.shape[1:] == (24, 23)
    ends = np.arange(23, 24 * 14 - 24, 13)
    kept = [end for end in ends if end + 24 < 24 * 7 and 99 not in (end + 1, end + 6, end + 24)]
    assert found.y_train.tolist() == 2 * [[end + 1, end + 6, end + 24] for end in kept]
    assert len(kept) == len([end for end in ends if end + 24 < 24 * 7]) - 1  # 75 + 24 was lost
    assert found.y_test[:, 0].tolist() == 2 * [end + 1 for end in ends if end >= 24 * 7]
    pm = found.x_train[0, :, 0] * natural.BEIJING_STD[0] + natural.BEIJING_MEAN[0]
    assert pm == pytest.approx(range(24), abs=1e-3)


def test_the_last_quarter_of_2015_chooses(tmp_path: Path) -> None:
    """Rows with a target in it are for validation, rows before for the fit, and both for training; the plan, a worker,
    a site of Flower and clients in another order keep that. Where rows are dealt anew, a tenth is drawn.
    """
    one = pytest.importorskip("umbel.flower.inprocess").one
    for name, start in (("Wanliu", "2015-09-20T00"), ("Dongsi", "2015-09-27T00")):
        station(tmp_path, name, start, 24 * 110)
    data = open_dataset("beijing-air", tmp_path)
    save_plan(tmp_path / "plan.npz", draw("natural", data))
    people = realise(load_plan(tmp_path / "plan.npz"), data)
    turn = {"Dongsi": 24 * 4, "Wanliu": 24 * 11}  # hours until October; PM2.5 counts the hours, so targets say when
    fed = umbel.simulate(people, model="linear", device="cpu")
    write_clients(tmp_path, people, fed.net, 0)
    for clients in (fed.clients, clients_from(tmp_path)[0], LocalClients(people.in_order(np.array([1, 0])), 0, CPU),
                    LocalClients(one(people, 1), 0, CPU)):
        for i, name in enumerate(clients.population.names):
            fit, validation, train = (clients.population.pool.y[np.sort(clients.rows(i, which))][:, 2]
                                      for which in ("fit", "validation", "train"))
            assert fit.max() < turn[name] <= validation.min()
            assert sorted([*fit, *validation]) == sorted(train)
    dealt = umbel.simulate(data, scenario="iid", clients=2, device="cpu").clients
    assert len(dealt.rows(0, "validation")) == round(len(dealt.rows(0, "train")) / 10)


def test_a_missing_measure_is_the_last_one_and_says_so() -> None:
    """Before there was any it is the mean; a missing wind is no direction; hours are angles of a day."""
    hours = np.datetime64("2014-01-01T00") + np.arange(7)
    measured = np.tile(np.array(natural.BEIJING_MEAN, dtype=np.float32), (7, 1))
    measured[:, 0] = [np.nan, 5, np.nan, np.nan, 8, 9, 9]
    rows = natural.hourly(hours, measured, np.array([WINDS.index("E"), -1, 0, 0, 0, 0, 0]))
    scaled = (np.array([natural.BEIJING_MEAN[0], 5, 5, 5, 8, 9, 9]) - natural.BEIJING_MEAN[0]) / natural.BEIJING_STD[0]
    assert rows[:, 0] == pytest.approx(scaled, abs=1e-6)
    assert rows[:, len(MEASURES)].tolist() == [1, 0, 1, 1, 0, 0, 0]
    sine, cosine = rows[:, 17], rows[:, 20]  # of wind east, none, north; of the day
    assert sine == pytest.approx([1, 0, 0, 0, 0, 0, 0], abs=1e-6)
    assert cosine[[0, 6]] == pytest.approx([1, 0], abs=1e-6)


def test_hours_that_do_not_follow_one_another_are_refused(tmp_path: Path) -> None:
    """A window over a gap would be no 24 hours."""
    station(tmp_path, "Dongsi", "2015-12-25T00", 24 * 14, skip=30)
    assert ("The hours of the station Dongsi must follow one another. After 2015-12-26T05 comes 2015-12-26T07."
            in refusal("beijing-air", tmp_path))
    (tmp_path / "PRSA_Data_Dongsi_20130301-20170228.csv").write_text("No,year\n1,2013\n")
    assert "must have the columns year to station and rows below them. Got none named month" in refusal(
        "beijing-air", tmp_path)


# Shakespeare


def test_characters_are_numbers() -> None:
    """A line's end, the printed ones of ASCII, and one number for all others."""
    assert natural.tokens_of("\n ~é\t").tolist() == [0, 1, 95, 96, 96]


def test_a_text_becomes_rows_that_meet() -> None:
    """The last character of a row's targets is the first input of the next row; what is left is dropped."""
    text = "".join(chr(ord(" ") + k % 95) for k in range(250))
    rows = natural.in_lines(text)
    assert rows.shape == (3, 81)
    assert rows[0].tolist() == natural.tokens_of(text[:81]).tolist()
    assert rows[0, -1] == rows[1, 0]
    assert natural.in_lines(text[:80]).shape == (0, 81)


def test_shakespeare_is_read_as_leaf_writes_it(tmp_path: Path) -> None:
    """LEAF's rows move on by one character: every 80th is taken; the first four fifths of a role are trained on."""
    folder = tmp_path / "shakespeare"
    folder.mkdir()
    text = "".join(chr(ord(" ") + k % 95) for k in range(80 * 10 + 1))
    rows = range(len(text) - 80)
    x, y = [text[k : k + 80] for k in rows], [text[k + 80] for k in rows]
    about = {"users": ["ROMEO", "PAGE"], "hierarchies": ["ROMEO AND JULIET"] * 2, "num_samples": [len(y), 0]}
    data = {"ROMEO": {"raw": text, "x": x, "y": y}, "PAGE": {"x": [], "y": []}}
    (folder / "all_data.json").write_text(json.dumps({**about, "user_data": data}))
    found = open_dataset("shakespeare", tmp_path)
    assert found.clients == ("ROMEO",)
    assert (found.x_train.shape, found.x_test.shape) == ((8, 80), (2, 80))
    whole = natural.in_lines(text)
    assert np.array_equal(np.concatenate([found.x_train, found.x_test]), whole[:, :-1])
    assert np.array_equal(np.concatenate([found.y_train, found.y_test]), whole[:, 1:])
    (folder / "all_data_niid_0_keep_0_test_9.json").write_text(json.dumps({"user_data": data}))
    assert "'ROMEO' stands in 'all_data_niid_0_keep_0_test_9.json' and in one" in refusal("shakespeare", tmp_path)
    (folder / "all_data_niid_0_keep_0_test_9.json").unlink()
    for wrong in ({"x": ["short"]}, {"x": ["short"], "y": ["s"]}):
        (folder / "all_data.json").write_text(json.dumps({"user_data": {"ROMEO": wrong}}))
        assert "must be LEAF's: user_data, with x of 80 characters" in refusal("shakespeare", tmp_path)
    (folder / "all_data.json").write_text(json.dumps({"user_data": {"ROMEO": {"x": x[::3], "y": y[::3]}}}))
    assert "Those of 'ROMEO' do not: they are a sample." in refusal("shakespeare", tmp_path)


# Clients of one's own


def owned() -> Dataset:
    """Three clients of 3, 1 and 4 training rows."""
    owner, x = np.array([2, 0, 2, 1, 0, 2, 0, 2]), np.arange(16, dtype=np.float32).reshape(8, 2)
    y = np.zeros(8, dtype=np.int64)
    return Dataset("mine", x, y, x[:3], y[:3], 2, clients=("a", "b", "c"), owners=(owner, np.array([0, 1, 2])))


def test_natural_deals_rows_to_their_owners(tmp_path: Path) -> None:
    """Names travel with the plan; fewer clients than there are are those with the most rows; there is no truth."""
    data = owned()
    plan = draw("natural", data)
    save_plan(tmp_path / "plan.npz", plan)
    people = realise(load_plan(tmp_path / "plan.npz"), data)
    assert people.names == ["a", "b", "c"]
    assert [people.pool.x[rows, 0].tolist() for rows in people.train] == [[2, 8, 12], [6], [0, 4, 10, 14]]
    assert [part.tolist() for part in plan.test] == [[8], [9], [10]]
    assert (plan.test_mode, plan.facts["groups"]) == ("own", 0)
    assert realise(draw("natural", data, clients=2), data).names == ["a", "c"]
    assert people.in_order(np.array([2, 0, 1])).names == ["c", "a", "b"]
    assert umbel.simulate(data, device="cpu").names == ["a", "b", "c"]
    assert umbel.simulate(data, scenario="iid", clients=2, device="cpu").names == ["c000", "c001"]


def test_owners_that_do_not_fit_are_refused() -> None:
    """A set without owners, more clients than there are, a row of nobody."""
    data = owned()
    with pytest.raises(UmbelError, match=r"mine has 3 clients of its own\. Got 4 instead\."):
        draw("natural", data, clients=4)
    with pytest.raises(UmbelError, match=r"natural deals rows to the set's own clients, and digits has none"):
        draw("natural", open_dataset("digits"))
    with pytest.raises(UmbelError, match=r"must say of each row whose it is"):
        Dataset("mine", data.x_train, data.y_train, data.x_test, data.y_test, 2, clients=("a", "b"), owners=data.owners)
    with pytest.raises(UmbelError, match=r"no test mode 'own'"):
        draw("iid", data, test_mode="own")


def test_natural_is_the_scenario_of_a_set_with_clients() -> None:
    """And all of them take part, unless fewer are asked for; other sets are dealt out evenly."""
    found = umbel.Experiment(data="wisdm").resolved()
    assert (found.scenario, found.clients, found.test_mode, found.normalise) == ("natural", 36, "own", True)
    assert umbel.Experiment(data="wisdm", scenario="iid").resolved().clients == 20
    assert umbel.Experiment().resolved().scenario == "iid"
    assert umbel.Experiment(data="shakespeare", clients=60).resolved().clients == 60


# The real ones


@needs_data
@pytest.mark.parametrize("name", NATURAL)
def test_a_real_set_is_what_its_source_says(name: str) -> None:
    """Rows, shapes, clients; every input is a finite number, and each client has rows of both kinds."""
    if not (REAL / "natural").is_dir():
        pytest.skip(f"no natural sets in {REAL}")
    found, source = open_dataset(name, REAL), DATASETS[name]
    assert (len(found.x_train), len(found.x_test), found.part) == (source.train, source.test, "")
    assert found.x_train.shape[1:] == source.shape
    assert (len(found.clients), found.objective, found.levels) == (source.clients, source.objective, source.levels)
    assert all((np.bincount(own, minlength=source.clients) > 0).all() for own in found.owners)
    if found.x_train.dtype == np.float32 and len(source.mean) > 1:  # scaled by the model: constants are of these rows
        numbers = [k for k in range(source.shape[0]) if source.std[k] != 1]
        mean, std = (np.array(each)[numbers] for each in (source.mean, source.std))
        assert found.x_train.mean(0, dtype=np.float64)[numbers] == pytest.approx(mean, rel=1e-3)
        assert found.x_train.std(0, dtype=np.float64)[numbers] == pytest.approx(std, rel=2e-3)


@needs_data
def test_fedavg_on_the_real_wisdm() -> None:
    """As the first trial found: one model for 36 people is about ten points worse than the same, fine-tuned."""
    if not (REAL / "natural").is_dir():
        pytest.skip(f"no natural sets in {REAL}")
    fed = umbel.simulate("wisdm", data_dir=REAL, device="cpu")
    result = umbel.run(umbel.FedAvg(local=umbel.Local(epochs=5)), fed, rounds=15, eval_every=15, fine_tune=5)
    assert 0.68 < result.accuracy < 0.78
    assert result.info["score"]["fine_tuned"]["mean"] > result.accuracy + 0.06
    assert fed.names[6] == "person 07"
    assert sources.DATASETS["wisdm"].cite.startswith("Kwapisz")
