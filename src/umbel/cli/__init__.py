"""The command line, one file a command; importing a command's file adds it to the app, in the order of `--help`."""

from typing import Annotated

import typer

from umbel.cli import run  # noqa: F401  isort: skip
from umbel.cli import diagnose  # noqa: F401  isort: skip
from umbel.cli import admit  # noqa: F401  isort: skip
from umbel.cli import report  # noqa: F401  isort: skip
from umbel.cli import reproduce  # noqa: F401  isort: skip
from umbel.cli import lists  # noqa: F401  isort: skip
from umbel.cli import site  # noqa: F401  isort: skip
from umbel import plugins
from umbel.cli.base import app, console, fail, stoppable
from umbel.errors import UmbelError


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
) -> None:
    if version:
        from importlib import metadata  # takes its time, and nobody else needs it

        try:
            number = metadata.version("umbel")
        except metadata.PackageNotFoundError:
            number = "not installed"
        console.print(f"umbel {number}", highlight=False)
        raise typer.Exit


def main() -> None:
    """Entry point: a wrong input is one sentence and exit code 2; a signal's is 128 and its number."""
    try:
        with stoppable():
            app(prog_name="umbel")
    except UmbelError as error:
        fail(str(error), 2)
    except Exception as error:
        if sentence := plugins.blamed(error):
            fail(sentence, 2)
        if not isinstance(error, OSError):
            raise
        # Files say more (files.py); what is left is the system's.
        fail(f"The system refuses {error.filename or 'something'}: {error.strerror or error}. Look after that, and give"
             " the same command again.", 2)
