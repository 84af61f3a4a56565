"""A paper's table: its cells as recipes, its printed figures beside ours.

`papers/*.toml` holds the tables as data, `table` reads them. `plan` says what is to be run here, `cells` runs it, each
cell a process; `computed` holds the few tables that need no run. `gather` collects what came of it, `measures` and
`cost` read a run, `beside` puts ours beside theirs.
"""
