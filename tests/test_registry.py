"""Names that are imported when they are asked for."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from umbel.errors import UmbelError
from umbel.registry import Registry, attributes, imported


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry[object]]:
    """Two things in a module that nobody has imported, one that needs what is not installed, one that is broken."""
    (tmp_path / "shelf_of_a_test.py").write_text("class Box:\n    pass\n\n\ndef lid():\n    pass\n")
    (tmp_path / "shelf_with_an_extra.py").write_text("import no_such_package\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield Registry("thing", {
        "box": "shelf_of_a_test:Box", "lid": "shelf_of_a_test:lid", "far": "shelf_with_an_extra:Far",
        "broken": "shelf_with_an_extra:Far",
    }, extras={"far": "distance"})
    sys.modules.pop("shelf_of_a_test", None)


def test_names_cost_no_import(shelf: Registry[object]) -> None:
    """Listing, counting and asking for a name import nothing; the first use does, and the thing stays the same."""
    assert list(shelf) == ["box", "lid", "far", "broken"]
    assert len(shelf) == 4
    assert "box" in shelf
    assert "bax" not in shelf
    assert repr(shelf) == "<Registry of 4, by thing: box, lid, far, broken>"
    assert "shelf_of_a_test" not in sys.modules
    assert shelf["box"] is shelf.find("box") is sys.modules["shelf_of_a_test"].Box


def test_a_name_that_is_not_there(shelf: Registry[object]) -> None:
    """`find` says a sentence; a mapping's own ways are as ever."""
    with pytest.raises(UmbelError, match=r"^There is no thing 'bix'. Did you mean 'box'\?$"):
        shelf.find("bix")
    with pytest.raises(KeyError):
        shelf["bix"]
    assert shelf.get("bix") is None


def test_an_extra_that_is_not_installed_is_named(shelf: Registry[object]) -> None:
    """What has no extra is a fault of its own, and not covered up."""
    with pytest.raises(UmbelError, match=r"^The thing 'far' needs no_such_package: pip install 'umbel\[distance\]'.$"):
        shelf["far"]
    with pytest.raises(ModuleNotFoundError):
        shelf["broken"]


def test_things_can_be_put_in(shelf: Registry[object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Real ones and places, for good or for a while."""
    shelf["own"] = int
    shelf["place"] = "collections:Counter"
    assert shelf["own"] is int
    assert shelf["place"].__name__ == "Counter"  # type: ignore[attr-defined]
    with monkeypatch.context() as patch:
        patch.setitem(shelf, "box", str)  # type: ignore[arg-type]
        patch.setitem(shelf, "new", str)  # type: ignore[arg-type]
        assert shelf["box"] is shelf["new"] is str
    assert shelf["box"] is sys.modules["shelf_of_a_test"].Box
    assert "new" not in shelf
    del shelf["own"]
    assert "own" not in shelf


def test_a_place_means_what_from_import_brings() -> None:
    """A name in a module, or a submodule."""
    assert imported("umbel.errors:UmbelError") is UmbelError
    assert imported("umbel:errors") is sys.modules["umbel.errors"]


def test_attributes_of_a_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Imported once and then kept; listed before; a wrong one is told with the near spelling."""
    package = type(sys)("package_of_a_test")
    monkeypatch.setitem(sys.modules, package.__name__, package)
    package.__getattr__, package.__dir__ = attributes(package.__name__, ["collections:Counter"])  # type: ignore
    assert "Counter" in dir(package)
    assert "Counter" not in vars(package)
    assert package.Counter is vars(package)["Counter"]
    with pytest.raises(AttributeError, match=r"module 'package_of_a_test' has no attribute 'Conter'. Did you mean"):
        package.Conter  # noqa: B018
    with pytest.raises(AttributeError, match=r"has no attribute 'xyz'$"):
        package.xyz  # noqa: B018
