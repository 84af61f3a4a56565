"""Fixtures of all tests."""

import sys
from pathlib import Path

import pytest
from terminal import Said, Umbel

from umbel import cli


@pytest.fixture
def umbel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Umbel:
    """Type a command in an empty folder, without a data folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("UMBEL_DATA", raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(cli.console, "width", 80)

    def type_(*words: object) -> Said:
        monkeypatch.setattr(sys, "argv", ["umbel", *map(str, words)])
        code: object = 0
        try:
            cli.main()
        except SystemExit as end:
            code = end.code
        assert isinstance(code, int)
        return Said(code, *capsys.readouterr())

    return type_
