"""What the bill says in sum."""

from umbel.federation.ledger import Line, summary, totals


def test_a_summary_parts_down_from_up_and_evaluation_from_both():
    """Two clients receive 10 bytes each and send 4 and 6; the 7 that scoring moved stand apart."""
    lines = [
        Line("train", 0, "down", "model", ("a", "b"), (10, 10)), Line("train", 0, "up", "model", ("a", "b"), (4, 6)),
        Line("signature", 0, "up", "basis", ("a",), (3,)), Line("evaluate", 0, "down", "model", ("a",), (7,)),
    ]
    assert summary(totals(lines)) == {"down": 20, "up": 13, "by_kind": {"basis": 3, "model": 30}, "evaluate": 7}
