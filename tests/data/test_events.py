"""Clients that come, go and change: populations by round, plans with events, changes as people type them."""

import json
from dataclasses import replace
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from umbel.data import events, shift
from umbel.data.clients import Change, Pool, Population
from umbel.data.plans import Event, Plan, _digest_of_targets, load_plan, realise, save_plan
from umbel.data.scenarios import draw
from umbel.data.sources import Dataset
from umbel.errors import UmbelError


@cache
def made() -> Dataset:
    """400 training and 100 test rows of ten labels, 4 x 4 pixels."""
    rng = np.random.default_rng(0)
    y = np.tile(np.arange(10), 50)
    x = rng.integers(0, 256, (500, 1, 4, 4), dtype=np.uint8)
    return Dataset("made", x[:400], y[:400], x[400:], y[400:], 10)


def numbers(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def three(**more: Any) -> Population:
    """Three clients with two training rows and a test row each, of nine; rows 9 to 11 are for changes."""
    pool = Pool(np.arange(12, dtype=np.uint8).reshape(12, 1, 1, 1), np.arange(12) % 3)
    rows = np.arange(9).reshape(3, 3)
    return Population(pool, list(rows[:, :2]), list(rows[:, 2:].copy()), numbers(0, 0, 1), 3, **more)


CHANGES = (Change(4, 0, numbers(9), numbers(2), 0), Change(2, 0, numbers(9, 10), numbers(11), 1),
           Change(3, 2, numbers(6, 7), numbers(8), 2))


# Populations


@given(st.integers(0, 50), st.integers(1, 6), st.integers(0, 2**31))
@settings(deadline=None, max_examples=40)
def test_without_changes_every_round_is_the_population_itself(round: int, n: int, seed: int) -> None:
    """`at(round)` holds the same rows and groups, and who `present` says is there."""
    rng = np.random.default_rng(seed)
    rows = [rng.permutation(20)[: rng.integers(1, 20)] for _ in range(2 * n)]
    joins = rng.integers(0, 50, n)
    people = Population(Pool(np.zeros((20, 1, 1, 1), np.uint8), np.zeros(20, np.int64)), rows[:n], rows[n:],
                        rng.integers(0, 3, n), 3, joins=joins)
    then = people.at(round)
    assert all(map(np.array_equal, [*then.train, *then.test, then.truth], [*people.train, *people.test, people.truth]))
    assert then.present.tolist() == (joins <= round).tolist() == people.present(round).tolist()


def test_a_change_holds_from_its_round_until_the_next() -> None:
    """Client 0 holds other rows from round 2 on and others again from round 4 on; client 1 never changes."""
    people = three(changes=CHANGES)
    held = [[rows.tolist() for rows in people.at(round).train] for round in range(5)]
    assert [own[0] for own in held] == [[0, 1], [0, 1], [9, 10], [9, 10], [9]]
    assert [own[1] for own in held] == [[3, 4]] * 5
    assert [people.at(round).test[0].tolist() for round in (1, 2, 4)] == [[2], [11], [2]]
    assert [people.at(round).truth.tolist() for round in range(5)] == [
        [0, 0, 1], [0, 0, 1], [1, 0, 1], [1, 0, 2], [0, 0, 2]]
    assert [people.change_of(0, round) for round in range(5)] == [None, None, 0, 0, 2]
    assert people.truth.tolist() == [0, 0, 1]


def test_another_order_takes_changes_along() -> None:
    """Whoever stands at a place has the rows, changes, coming and going of the client that was put there."""
    people = three(changes=CHANGES, joins=numbers(0, 3, 1), leaves=numbers(5, 6, 7))
    order = numbers(2, 0, 1)
    moved = people.in_order(order)
    for round in range(6):
        then, now = people.at(round), moved.at(round)
        assert all(np.array_equal(now.train[place], then.train[i]) for place, i in enumerate(order))
        assert all(np.array_equal(now.test[place], then.test[i]) for place, i in enumerate(order))
        assert now.truth.tolist() == then.truth[order].tolist()
        assert now.present.tolist() == then.present[order].tolist()


def test_the_hash_counts_changes_where_there_are_some() -> None:
    """Without changes it is what it always was; a row, a round or a group of a change makes another."""
    people = three()
    digest = blake2b(digest_size=8)
    for array in (people.pool.x, people.pool.y, people.truth, *people.train, *people.test):
        digest.update(str((array.dtype.str, array.shape)).encode() + array.tobytes())
    assert people.hash == digest.hexdigest()
    one = CHANGES[0]
    others = [one, one._replace(round=5), one._replace(group=2), one._replace(client=1),
              one._replace(train=numbers(10)), one._replace(test=numbers(9), train=numbers(2)),
              one._replace(train=numbers(9, 2), test=numbers())]
    assert len({people.hash, *(three(changes=(each,)).hash for each in others)}) == 1 + len(others)


def test_groups_that_change_are_not_pooled() -> None:
    """What a centralised oracle would be of clients that move is not said by anybody."""
    with pytest.raises(UmbelError, match=r"Only groups that stay the same can be pooled.*in round 2"):
        three(changes=CHANGES).pooled()
    assert len(three().pooled().train) == 2


@pytest.mark.parametrize("wrong", [{"round": 0}, {"client": 3}, {"client": -1}])
def test_a_change_of_nobody_or_before_the_start_is_refused(wrong: dict[str, int]) -> None:
    """It would hold for nobody, or be the start itself."""
    with pytest.raises(UmbelError, match="A change comes in round 1 or later, to one of the clients 0 to 2"):
        three(changes=(CHANGES[0]._replace(**wrong),))


# Plans


def plan(*happen: Event) -> Plan:
    """Four clients, two of them turned."""
    drawn = draw("rotation-4", made(), clients=4, seed=1)
    return replace(drawn, events=happen)


def test_a_plan_with_events_makes_clients_that_change() -> None:
    """Images and labels of every round are those of its rows under its shift; what a change leaves out stays."""
    rows = np.arange(400, 420)
    drawn = plan(Event("change", 3, 1, "rotate:180+swap:1-7", group=2), Event("change", 5, 1, None, rows, rows + 20),
                 Event("join", 2, 0), Event("leave", 4, 3))
    people = realise(drawn, made())
    x = np.concatenate([made().x_train, made().x_test])
    y = np.concatenate([made().y_train, made().y_test])
    for round in range(7):
        then = people.at(round)
        kind = "rotate:180+swap:1-7" if round >= 3 else "rotate:90"
        held = {"train": rows if round >= 5 else drawn.train[1], "test": rows + 20 if round >= 5 else drawn.test[1]}
        for which, own in held.items():
            images, labels = shift.apply(kind, x[own], y[own], own)
            mine = getattr(then, which)[1]
            assert np.array_equal(people.pool.x[mine], images)
            assert np.array_equal(people.pool.y[mine], labels)
        assert then.truth.tolist() == [0, 2 if round >= 3 else 1, 2, 3]
        assert then.present.tolist() == [round >= 2, True, True, round < 4]


def test_a_pool_has_each_row_under_each_shift_once() -> None:
    """A client that takes on the looks of another and goes back brings no row twice."""
    drawn = plan(Event("change", 2, 0, "rotate:90"), Event("change", 4, 0, ""))
    people = realise(drawn, made())
    sizes = [len(drawn.train[i]) + len(drawn.test[i]) for i in range(4)]
    assert len(people.pool.y) == sum(sizes) + sizes[0]
    assert np.array_equal(people.at(4).train[0], people.train[0])


def test_events_that_change_nothing_leave_the_clients_alone() -> None:
    """The pool and the rows of the start are those of the plan without events, to the byte."""
    before, after = realise(plan(), made()), realise(plan(Event("change", 3, 0, "erode")), made())
    assert np.array_equal(after.pool.x[: len(before.pool.x)], before.pool.x)
    assert all(map(np.array_equal, after.train, before.train))


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "kind": ({"kind": "turn"}, "The 'kind' of an event must be 'join' or 'leave' or 'change'. Got 'turn' instead."),
    "round": ({"round": 0}, "The 'round' of an event must be at least 1 and at most 1000000000. Got 0 instead."),
    "client": ({"client": -1}, "The 'client' of an event must be at least 0 and at most 2147483647. Got -1 instead."),
    "client beyond": ({"client": 4}, "The clients of this plan are 0 to 3. Got an event of client 4."),
    "nothing": ({"shift": None}, "A change says what changes"),
    "join with a shift": ({"kind": "join"}, "a join or leave says nothing of them. Got a join of client 1 in round 2."),
    "shift": ({"shift": "turn:90"}, "There is no shift 'turn'."),
    "label": ({"shift": "swap:1-12"}, "A swap is of labels in 0 .. 9. Got one that makes a label 12."),
    "row": ({"train": numbers(500)}, "numbers from 0 to 499. Got other rows for client 1 in round 2."),
    "no row": ({"train": numbers()}, "numbers from 0 to 499. Got other rows for client 1 in round 2."),
    "both": ({"train": numbers(1), "test": numbers(1)}, "training rows and other rows to be tested on"),
}


@pytest.mark.parametrize(("fields", "sentence"), WRONG.values(), ids=WRONG.keys())
def test_a_bad_event_is_refused_in_a_sentence(fields: dict[str, Any], sentence: str) -> None:
    """Whoever makes the event, the plan or the clients hears which rule it breaks."""
    with pytest.raises(UmbelError) as caught:
        realise(plan(Event(**{"kind": "change", "round": 2, "client": 1, "shift": "erode", **fields})), made())
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("happen", "sentence"), [
    ((Event("join", 2, 0), Event("join", 3, 0)), "A client comes once and goes once. Got two events 'join'"),
    ((Event("leave", 2, 0), Event("join", 2, 0)), "A client goes after it came. Client 0 joins in round 2 and leaves"),
])
def test_a_client_comes_once_and_then_goes(happen: tuple[Event, ...], sentence: str) -> None:
    """A population has one round for each."""
    with pytest.raises(UmbelError, match=sentence):
        plan(*happen)


def test_events_survive_the_disk(tmp_path: Path) -> None:
    """A plan with events comes back with all of them, and makes the same clients."""
    drawn = plan(Event("change", 3, 1, "erode", numbers(1, 2), numbers(7), 5), Event("change", 4, 2, ""),
                 Event("join", 2, 0))
    save_plan(tmp_path / "plan.npz", drawn)
    back = load_plan(tmp_path / "plan.npz")
    assert [(e.kind, e.round, e.client, e.shift, e.group) for e in back.events] == [
        ("change", 3, 1, "erode", 5), ("change", 4, 2, "", None), ("join", 2, 0, None, None)]
    assert realise(back, made()).hash == realise(drawn, made()).hash
    assert back.dealt is not None
    assert back.dealt.tolist() == [0, 0, 0, 0]


def test_a_bad_event_on_disk_is_refused_with_its_own_sentence(tmp_path: Path) -> None:
    """A file that was edited says what is wrong with it."""
    save_plan(tmp_path / "plan.npz", plan(Event("change", 3, 1, "erode")))
    with np.load(tmp_path / "plan.npz") as file:
        arrays = dict(file)
    arrays["about"] = np.array(str(arrays["about"]).replace('"round": 3', '"round": -3'))
    np.savez(tmp_path / "plan.npz", **arrays)
    with pytest.raises(UmbelError, match=r"The 'round' of an event must be at least 1 and at most 1000000000\."
                                         r" Got -3 instead"):
        load_plan(tmp_path / "plan.npz")


def test_a_plan_of_schema_1_is_still_read(tmp_path: Path) -> None:
    """What umbel wrote before there were events, letter by letter."""
    about = {"plan": 1, "classes": 10, "test_mode": "holdout",
             "facts": {"groups": 2, "data": "made", "data_hash": _digest_of_targets(made())}}
    np.savez_compressed(
        tmp_path / "old.npz", truth=numbers(0, 1), shift=np.array(["", "rotate:90"]), about=np.array(json.dumps(about)),
        train_rows=numbers(0, 1, 2, 3, 4), train_ends=numbers(2, 5), test_rows=numbers(5, 6), test_ends=numbers(1, 2),
    )
    old = load_plan(tmp_path / "old.npz")
    assert (old.events, old.dealt, old.shift) == ((), None, ["", "rotate:90"])
    people = realise(old, made())
    assert [len(rows) for rows in people.train] == [2, 3]
    assert (people.changes, people.joins, people.leaves) == ((), None, None)
    assert np.array_equal(people.pool.x[people.train[1][0]], np.rot90(made().x_train[2], 1, axes=(-2, -1)))
    with pytest.raises(UmbelError, match="This partition is of an older umbel"):
        events.changes("1@3:erode", old, made().y_train, np.arange(2))
    assert events.changes("", old, made().y_train, np.arange(2)) == ()


# Changes as people type them


STEPS = ["rotate:90", "rotate:180", "rotate:270", "erode", "dilate", "swap:1-7", "swap:7-1", "swap:2-7", "noise:0.1"]


@given(st.lists(st.sampled_from(STEPS), max_size=6), st.lists(st.sampled_from(STEPS), min_size=1, max_size=3))
@settings(deadline=None, max_examples=80)
def test_one_spelling_looks_the_same(own: list[str], more: list[str]) -> None:
    """Chains in one spelling, and one on top of another, do to every pixel and label what the steps do in turn."""
    rows = np.arange(0, 40)
    x, y = made().x_train[rows], made().y_train[rows]
    chain, behind = "+".join(own), "+".join(more)
    for short, steps in ((shift.normal(chain), own), (shift.on_top(chain, behind, y), own + more)):
        seen, meant = shift.apply(short, x, y, rows), shift.apply("+".join(steps), x, y, rows)
        assert all(map(np.array_equal, seen, meant))
        assert shift.normal(short) == short


@pytest.mark.parametrize(("shifts", "one"), [
    ("rotate:270+rotate:90", ""), ("erode+rotate:90", "rotate:90+erode"), ("swap:7-1+erode+swap:1-7", "erode"),
    ("rotate:90+noise:0.1+rotate:90", "rotate:90+noise:0.1+rotate:90"), ("erode+dilate", "erode+dilate"),
])
def test_the_same_shift_has_one_spelling(shifts: str, one: str) -> None:
    """Turns add up, a swap is undone by itself; what noise or order decides is left alone."""
    assert shift.normal(shifts) == one


def test_noise_makes_no_groups() -> None:
    """It differs from client to client: groups are told by the rest."""
    assert shift.grouped("rotate:90+noise:0.1+rotate:90") == "rotate:180"


def test_a_swap_of_labels_that_a_client_does_not_hold_is_not_felt() -> None:
    """Labels are those after the client's own swaps."""
    assert shift.on_top("rotate:90", "swap:1-7", numbers(2, 3)) == "rotate:90"
    assert shift.on_top("swap:1-7", "swap:7-9", numbers(1, 2)) == "swap:1-7+swap:7-9"


@pytest.mark.parametrize(("text", "sentence"), [
    *((text, f"A change is written COUNT@ROUND:SHIFT, both numbers at least 1, as in 2@3:rotate:90. Got '{text}'")
      for text in ("2@3", "2@3:", "0@3:erode", "2@0:erode", "x@3:erode", "2:erode", "2@-1:erode", "2@²:erode")),
    ("2@3:turn:90", "There is no shift 'turn'."), ("2@3:rotate:45", "A rotation is a multiple of 90 degrees"),
    ("2@3:rotate:x", "A shift reads like 'rotate:90'. Got 'rotate:x' instead."), ("2@3:swap:1", "like 'swap:1-7'"),
    ("2@3:noise:nan", "The level of noise is from 0 to 1"), ("2@3:noise:2", "The level of noise is from 0 to 1"),
    ("2@3:rotate:90++erode", "There is no shift ''"),
])
def test_a_change_that_cannot_be_read_is_refused(text: str, sentence: str) -> None:
    """Before anything is drawn."""
    with pytest.raises(UmbelError) as caught:
        events.shifts(text)
    assert sentence in str(caught.value)


def happened(text: str, scenario: str, order: list[int] | None = None, clients: int = 4) -> list[tuple[Any, ...]]:
    drawn = draw(scenario, made(), clients=clients, seed=1)
    y = np.concatenate([made().y_train, made().y_test])
    made_of = events.changes(text, drawn, y, np.array(order or range(clients)))
    return [(e.round, e.client, e.shift, e.group) for e in made_of]


def test_the_first_clients_change_and_join_the_group_that_they_are_like() -> None:
    """Turned by 90 degrees client 0 is like client 1; beyond all groups a new one begins, which the next may join."""
    assert happened("2@3:rotate:90", "rotation-4") == [(3, 0, "rotate:90", 1), (3, 1, "rotate:180", 2)]
    assert happened("9@3:rotate:90", "rotation-4")[-1] == (3, 3, "", 0)
    assert happened("1@3:erode,2@5:rotate:90", "rotation-4") == [
        (3, 0, "erode", 4), (5, 0, "rotate:90+erode", 5), (5, 1, "rotate:180", 2)]
    assert happened("1@5:rotate:270,1@3:rotate:90+erode", "rotation-4") == [
        (3, 0, "rotate:90+erode", 4), (5, 0, "erode", 5)]
    assert happened("2@3:erode", "iid") == [(3, 0, "erode", 1), (3, 1, "erode", 1)]


def test_places_count_after_a_shuffle() -> None:
    """The first places are taken by clients 2 and 0."""
    assert happened("2@3:rotate:90", "rotation-4", [2, 0, 1, 3]) == [(3, 2, "rotate:270", 3), (3, 0, "rotate:90", 1)]


def test_a_group_is_a_share_of_the_partition_and_a_shift() -> None:
    """A client of another share of the labels joins nobody by its looks alone; noise changes no group."""
    drawn = draw("flag:labels=0.2,groups=2+rotation-4", made(), clients=8, seed=1)
    assert drawn.dealt is not None
    assert drawn.dealt.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    found = happened("5@3:rotate:90", "flag:labels=0.2,groups=2+rotation-4", clients=8)
    assert [group for *_, group in found] == [1, 2, 3, 0, 5]
    quiet = happened("1@3:noise:0.2", "rotation-4+noise")
    assert quiet[0][3] == 0


def test_without_true_groups_a_change_has_none() -> None:
    """There is nothing to be in."""
    assert happened("1@3:erode", "dirichlet:alpha=5,min_size=2") == [(3, 0, "erode", None)]


def test_a_partition_with_changes_takes_no_others() -> None:
    """What would be on top of what is not to be guessed."""
    with pytest.raises(UmbelError, match="A partition that has changes of its own takes no others"):
        events.changes("1@3:erode", plan(Event("change", 2, 0, "erode")), made().y_train, np.arange(4))
