"""The planted bugs of mutants.toml still fit the code; `make mutants` plants them and sees them caught."""

from pathlib import Path

import pytest
from mutants import ROOT, Mutant, judged, mutants

TESTS = Path(__file__).parent


@pytest.mark.parametrize("mutant", mutants(), ids=lambda mutant: mutant.breaks)
def test_a_planted_bug_fits_the_code_and_names_a_test(mutant: Mutant) -> None:
    """Its text stands in its file exactly once and would be changed; its test is there."""
    code = (ROOT / "src" / "umbel" / mutant.file).read_text()
    assert mutant.planted(code) != code
    file, _, function = mutant.test.partition("[")[0].partition("::")
    assert f"\ndef {function}(" in (TESTS / file).read_text()


def test_no_bug_is_planted_twice() -> None:
    """Every entry has a place and words of its own."""
    planted = mutants()
    assert len({mutant.breaks for mutant in planted}) == len({(m.file, m.before, m.after) for m in planted})
    assert len({mutant.breaks for mutant in planted}) == len(planted)


SOUND = Mutant("nothing at all", "registry.py", "Names whose objects", "Words whose objects",
               "test_registry.py::test_a_name_that_is_not_there")


@pytest.mark.parametrize(("changed", "verdict"), [
    ({}, "SURVIVED"),
    ({"before": "raise unknown(self.kind, name, [*self, *self.added])", "after": "raise KeyError(name)"}, "caught"),
    ({"before": "not in the file"}, "DOES NOT APPLY: registry.py has 0 places"),
    ({"before": "def "}, "DOES NOT APPLY: registry.py has"),
    ({"test": "test_registry.py::test_that_is_not_there"}, "NO TEST RAN"),
])
def test_only_a_failing_test_counts(changed: dict[str, str], verdict: str) -> None:
    """A harmless change survives; what does not apply, or has no test, is not taken for caught."""
    assert judged(Mutant(**{**vars(SOUND), **changed})).startswith(verdict)
