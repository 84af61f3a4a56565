"""What a person brings in a file of their own, by name: `mine.py:MyMethod` is the object MyMethod of the file mine.py.

A file is imported where a person named it, and once. A recipe keeps the file's name and its digest: a file that only a
recipe names is imported when a person allows it, and one that has changed is refused. It is read once, so that what was
held against the digest is what runs. An error in it is one sentence with the file and the line.
"""

import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import module_from_spec
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from umbel.errors import UmbelError, nearest
from umbel.files import digest_of, read_bytes, there

NAMED_IN = ("method", "model", "data", "objective")  # choices of a recipe that may be such a name
LARGEST = 2**20  # bytes of a file of code
_PLACE = re.compile(r"(.+\.py):([A-Za-z_]\w*)")
_imported: dict[Path, ModuleType] = {}


class _Loader(SourceFileLoader):
    """Runs the bytes that were read, and leaves no compiled file behind."""

    def __init__(self, name: str, path: Path, content: bytes) -> None:
        super().__init__(name, str(path))
        self.content = content

    def get_code(self, fullname: str) -> CodeType:
        """Of these very bytes, whatever the file holds by now."""
        return self.source_to_code(self.content, self.path)


def parted(text: object) -> tuple[str, str] | None:
    """The file and the name of the object, or None where a text is no such place."""
    place = _PLACE.fullmatch(text) if isinstance(text, str) else None
    return (place[1], place[2]) if place else None


def label(text: str) -> str:
    """A name for tables and folders: of a place the object's alone."""
    place = parted(text)
    return place[1] if place else text


def bring(text: str) -> Any:
    """The object at a place; its file is imported if this process has not done so yet."""
    place = parted(text)
    assert place is not None
    file, name = place
    module = _module(Path(file))
    if not hasattr(module, name):
        raise UmbelError(f"There is no '{name}' in the file {file}. {nearest(name, vars(module))}".rstrip())
    return getattr(module, name)


def digests(names: Iterable[object]) -> dict[str, str]:
    """The digest of each file that is named in some places."""
    files = dict.fromkeys(place[0] for name in names if (place := parted(name)))
    return {file: digest_of(_read(Path(file))) for file in files}


def refuse_changed(known: Mapping[str, str]) -> None:
    """Raise where a file is not the one that a recipe was written with."""
    for file, digest in known.items():
        if digest_of(_read(Path(file))) != digest:
            raise UmbelError(f"The file {file} must be the one that the recipe was written with, whose digest is"
                             f" {digest}. It was changed: put the old one back, or start a new run.")


def settled(recipe: Mapping[str, Any], folder: Path, trust: bool = False) -> dict[str, Any]:
    """A recipe that was read in a folder, its places as they are found from here.

    A file is looked for from the recipe's folder, then from the current one. One that this process has not imported is
    refused unless a person trusts it.
    """
    kept = recipe.get("plugins", {})
    found: dict[str, str] = {}
    known: dict[str, str] = {}
    for name in NAMED_IN:
        if (place := parted(recipe.get(name))) is None:
            continue
        file, thing = place
        path = _found(file, folder)
        if isinstance(kept, Mapping) and file in kept:
            known[str(path)] = str(kept[file])
            refuse_changed(known)
        if not trust and _here(path) is None:
            raise UmbelError(f"The {name} of the recipe in {folder} is code of the file {path}, which this command does"
                             " not name. Look at it, then allow it with --trust (in Python: trust=True).")
        found[name] = f"{path}:{thing}"
    return {name: value for name, value in recipe.items() if name != "plugins"} | found | (
        {"plugins": known} if known else {})


def allow(recipe: Mapping[str, Any], folder: Path) -> None:
    """Import the files of a recipe, since a person trusts them."""
    for name, text in settled(recipe, folder, trust=True).items():
        if name in NAMED_IN and parted(text):
            bring(text)


def had(recipe: Mapping[str, Any], name: str, folder: Path) -> str | None:
    """A choice of a recipe whose file this process has imported already, as it is found from here; else None."""
    try:
        found = settled({key: recipe[key] for key in (name, "plugins") if key in recipe}, folder)
    except UmbelError:  # not imported, not there, or changed
        return None
    return found[name] if parted(found.get(name)) else None


def place_of(thing: Any) -> str | None:
    """Where another process would find a class or a function: in the file that it was read from, if it has one.

    What is inside a function, in a package or typed into a notebook cannot be found so, nor can what umbel brings.
    """
    name, home = getattr(thing, "__qualname__", ""), sys.modules.get(getattr(thing, "__module__", None) or "")
    file = getattr(home, "__file__", None)
    if home is None or not file or not str(file).endswith(".py") or not there(Path(file)):
        return None
    if getattr(home, "__package__", None) or getattr(home, name, None) is not thing:
        return None
    return f"{_from_here(Path(file))}:{name}"


def called(text: str, make: Callable[..., Any], *given: Any) -> Any:
    """What a person's function returns; an error in it is a sentence."""
    try:
        return make(*given)
    except UmbelError:
        raise
    except Exception as error:
        raise UmbelError(f"{text} does not work: {_where(error)}.") from error


def blamed(error: BaseException) -> str:
    """A sentence for an error that came from an imported file; nothing for one that did not."""
    files = {str(path) for path in _imported}
    if not any(frame.filename in files for frame in traceback.extract_tb(error.__traceback__)):
        return ""
    return f"An error in a file of your own ended this: {_where(error)}."


def _module(path: Path) -> ModuleType:
    module = _here(path)
    if module is not None:
        return module
    content = _read(path)
    real = path.resolve()
    name = f"umbel_plugin_{re.sub(r'[^A-Za-z0-9_]', '_', path.stem)}_{digest_of(content)[:8]}"
    module = module_from_spec(ModuleSpec(name, loader := _Loader(name, real, content), origin=str(real)))
    module.__file__ = str(real)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        loader.exec_module(module)
    except UmbelError:
        del sys.modules[name]
        raise
    except Exception as error:
        del sys.modules[name]
        raise UmbelError(f"The file {path} cannot be imported: {_where(error, real)}.") from error
    _imported[real] = module
    return module


def _here(path: Path) -> ModuleType | None:
    """The module of a file that this process has imported, here or as Python does it."""
    real = path.resolve()
    if real in _imported:
        return _imported[real]
    loaded = list(sys.modules.values())
    return next((each for each in loaded if (file := getattr(each, "__file__", None)) and str(file).endswith(path.name)
                 and not getattr(each, "__package__", None) and Path(file).resolve() == real), None)


def _read(path: Path) -> bytes:
    if not path.is_file():
        raise UmbelError(f"There is no file {path} to import.")
    return read_bytes(path, LARGEST, follow=True)


def _found(file: str, folder: Path) -> Path:
    """From the recipe's folder, then from the current one; as it would be named from here."""
    for path in (folder / file, Path(file)):
        if path.is_file():
            return path if path == Path(file) else _from_here(path)
    raise UmbelError(f"The file {file}, which the recipe in {folder} names, must lie in that folder or be found from"
                     " the current one. There is none: put it there, or go to where the run was begun.")


def _from_here(path: Path) -> Path:
    """A path from the current folder, where it lies below it; else the whole."""
    whole = path.resolve()
    return Path(os.path.relpath(whole)) if whole.is_relative_to(Path.cwd()) else whole


def _where(error: BaseException, file: Path | None = None) -> str:
    """The deepest line in a file of a person's own, and the error."""
    own = {str(path) for path in _imported} | {str(file)}
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in own]
    line: int | None = frames[-1].lineno if frames else None
    place = frames[-1].filename if frames else str(file or "")
    if isinstance(error, SyntaxError) and error.filename in own:
        place, line = error.filename or place, error.lineno
    said = " ".join(str(getattr(error, "msg", "") or error).split()).rstrip(".")[:300]
    words = f"{type(error).__name__}: {said}" if said else type(error).__name__
    return f"{place}, line {line}: {words}" if line else words
