"""Options that several commands have."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from umbel.cli import complete
from umbel.nets import MODELS

of_data = partial(typer.Option, rich_help_panel="Data")
of_table = partial(typer.Option, rich_help_panel="Your own data")
of_training = partial(typer.Option, rich_help_panel="Training")
of_run = partial(typer.Option, rich_help_panel="Run")

Data = Annotated[str | None, of_data(
    autocompletion=complete.data, help="Data set (`umbel list data`), a table of your own (CSV, Parquet), a folder with"
                                       " a file for each client, or FILE.py:NAME. Default: digits.")]
ClientColumn = Annotated[str | None, of_table(metavar="NAME", help="The column that says whose a row is.")]
TargetColumn = Annotated[str | None, of_table(metavar="NAME", help="The column that is to be learnt.")]
Drop = Annotated[str | None, of_table(metavar="NAMES", help="Columns to leave out, joined by commas.")]
Categories = Annotated[str | None, of_table(metavar="NAMES", help="Columns of whole numbers that are names.")]
Split = Annotated[str | None, of_table(
    help="Test rows: rows, drawn; time:COLUMN, the last; column:NAME, which says train or test. Default: rows.")]
TestShare = Annotated[float | None, of_table(help="Share of each client's rows that it is tested on. Default: 0.25.")]
WeightColumn = Annotated[str | None, of_table(
    metavar="NAME", help="The column by which the losses of training rows are multiplied: numbers from 0.")]
Scaling = Annotated[str | None, of_table(
    help="federated, by sums of all clients; site, by each one's own; none. Default: federated.")]
PreparationFile = Annotated[Path | None, of_table(
    "--preparation", help="A preparation.json of an earlier run: nothing is asked of the clients.")]
DataDir = Annotated[Path | None, of_data(envvar="UMBEL_DATA", help="Folder with data sets.")]
Scenario = Annotated[str | None, of_data(
    autocompletion=complete.scenarios,
    help="Who holds what: NAME, NAME:param=value,..., or two joined by +; `umbel list scenarios`. Default: natural"
         " for a set with clients of its own, else iid.")]
Partition = Annotated[Path | None, of_data(help="A partition.npz of an earlier run, instead of drawing one.")]
Clients = Annotated[int | None, of_data(help="How many clients; by default the scenario's own number.")]
TestMode = Annotated[str | None, of_data(help="Local test sets: label_full, matched, holdout or, with natural, own.")]
Shuffle = Annotated[bool | None, of_data("--shuffle", help="Shuffle clients: late ones come from all groups.")]
Pooled = Annotated[bool | None, of_data("--pooled", help="One client per true group, with all its data.")]
Join = Annotated[str | None, of_data(help="20@50: the last 20 clients appear at round 50.")]
Change = Annotated[str | None, of_data(
    help="2@3:rotate:90: the first 2 clients have this shift on top of their own from round 3 on.")]
Attack = Annotated[str | None, of_data(
    metavar="COUNT:KIND", help="2:scaled:100: two clients lie: scaled, flipped, mislabelled or forged.")]
Leave = Annotated[str | None, of_data(help="5@30: the first 5 clients are gone from round 30 on.")]
ModelName = Annotated[str | None, of_training(
    "--model", autocompletion=complete.models,
    help=f"{', '.join(MODELS)}, or FILE.py:NAME. Default: lenet5 for images, tcn for series, gru for texts, mlp for"
         " digits and tables.")]
Goal = Annotated[str | None, of_training(
    "--objective", help="What models are for: classify or regress, for data of your own; FILE.py:NAME, or a name that a"
                        " package adds, for any. Default: what the data say, or the target looks like.")]
MetricName = Annotated[str | None, of_run(
    "--metric", autocompletion=complete.metrics,
    help="What the run is judged by: accuracy, balanced_accuracy, macro_f1 or auc; mae, rmse or r2; token_accuracy or"
         " perplexity. Default: the first that fits.")]
ClassWeights = Annotated[str | None, of_training(
    metavar="WEIGHTS", help="Of classes in the loss: balanced, or one number a class, 1,4. Default: all count alike.")]
Normalise = Annotated[bool | None, of_training(help="Scale inputs by the data set's mean and std; not for mlp.")]
Rounds = Annotated[int | None, of_training(help="Rounds, after a method's own pre-training. Default: 20.")]
Fraction = Annotated[float | None, of_training(help="Share of the clients asked in a round. Default: 1.")]
Epochs = Annotated[int | None, of_training(help="Local epochs in a round. Default: 10.")]
Batch = Annotated[int | None, of_training(help="Rows in a local batch; 0 = all. Default: 10.")]
Rate = Annotated[float | None, of_training("--lr", help="Local learning rate. Default: 0.01.")]
Optimiser = Annotated[str | None, of_training(help="Of local training: sgd, adam or adamw. Default: sgd.")]
Schedule = Annotated[str | None, of_training(
    help="How the learning rate follows the round: constant, step or cosine. Default: constant.")]
Seed = Annotated[int | None, of_run(help="Decides partition, first weights, cohorts and batches. Default: 0.")]
Engine = Annotated[str | None, of_run(
    autocompletion=complete.engines, help="simulator; loop, for debugging; flower, on Ray. Default: simulator.")]
Device = Annotated[str | None, of_run(
    autocompletion=complete.devices, help="auto, cpu or cuda. Default: auto.")]
Precision = Annotated[str | None, of_run(
    help="float32, or faster and coarser: tf32 (GPU), bf16. Default: float32.")]
Workers = Annotated[int | None, of_run(min=1, help="Processes for long training on a CPU. Default: one a core.")]
EvalEvery = Annotated[int | None, of_run(help="Test every so many rounds. Default: 1.")]
AverageLast = Annotated[int | None, of_run(help="Average the cluster model's score over the last rounds.")]
Keep = Annotated[str | None, of_run(
    help="Keep the last round's models, or the best round's by validation rows (with --set rows=fit). Default: last.")]
Uplink = Annotated[str | None, of_training(
    metavar="CHAIN", help="What answers pass on their way out of a client, joined by +: clip:NORM, topk:SHARE,"
                          " quantise:8 or quantise:16. Default: nothing.")]
Bound = Annotated[float | None, of_training(
    metavar="TIMES", help="How many times as long as usual an update may be and count; 0 = any length. Default: 10.")]
FineTune = Annotated[int | None, of_training(help="Epochs of fine-tuning at the end; 0 = none. Default: a round's.")]
Setting = Annotated[list[str] | None, of_training(
    "--set", metavar="NAME=VALUE", help="A setting of the method; may be given several times.")]
Out = Annotated[Path | None, of_run(help="The run folder. Default: a new one under runs/.")]
Trust = Annotated[bool, of_run("--trust", help="Import files of code that a recipe names and this command does not.")]
Quiet = Annotated[bool, of_run("--quiet", "-q", help="Only the result.")]
