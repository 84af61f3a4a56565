"""The papers, a file each, and the names of their tables."""

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

PAPERS = ("comparative", "flag", "pacfl", "fedclust", "cflgt")
COMMON = ("title", "over", "protocol", "words", "band", "why")  # of a paper; everything else in its file is a table


@cache
def read(paper: str) -> dict[str, Any]:
    """A paper's file."""
    return tomllib.loads((files(__name__) / f"{paper}.toml").read_text("utf-8"))


def names() -> list[str]:
    """Of all tables, as a person types them."""
    return [f"{paper}/{table}" for paper in PAPERS for table in read(paper) if table not in COMMON]
