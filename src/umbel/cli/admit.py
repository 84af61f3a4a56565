"""`umbel admit`."""

from pathlib import Path
from typing import Annotated

import typer

from umbel.cli.base import app, say
from umbel.cli.options import Trust
from umbel.files import write_atomically


@app.command()
def admit(
    run: Annotated[Path, typer.Argument(hidden=True)],
    file: Annotated[Path, typer.Argument(hidden=True)],
    name: Annotated[str | None, typer.Option(help="Name of the newcomer. Default: the file's.")] = None,
    fine_tune: Annotated[int, typer.Option(min=0, help="Epochs of training on its rows before it is used.")] = 0,
    trust: Trust = False,
    save: Annotated[Path | None, typer.Option(help="Write its model here, as safetensors.")] = None,
) -> None:
    """Place a new client in a finished run: the cluster it belongs to, and its model.

    RUN is a run folder, FILE an npz with x_train and y_train, and x_test and y_test if there are test rows; images are
    uint8. The run folder stays as it was.

    Example: umbel admit runs/pacfl-digits-rotation-4-s0 client.npz --fine-tune 5 --save model.safetensors
    """
    from umbel.runs import newcomer  # brings torch
    from umbel.runs.session import allow
    from umbel.runs.tensors import to_bytes

    if trust:
        allow(run)
    placed = newcomer.admit(run, file, name, fine_tune)
    if placed.members:
        say(f"{placed.name} joins cluster {placed.cluster}, which has {placed.members} clients.")
    else:
        say(f"{placed.name} is like nobody: it founds cluster {placed.cluster}, and starts from the first model.")
    if placed.score is not None:
        metric = placed.net.objective.metric
        tuned = "" if placed.fine_tuned is None else f", {metric.said(placed.fine_tuned)} after {fine_tune} epochs"
        say(f"{metric.title} on its test rows: {metric.said(placed.score)} with the cluster's model{tuned}.")
    if save is not None:
        write_atomically(save, to_bytes(placed.model))
        say(f"Model: {save}")
