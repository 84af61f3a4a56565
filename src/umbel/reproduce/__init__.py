"""A paper's table: its cells as recipes, its printed figures beside ours.

`papers/*.toml` holds the tables as data, `table` reads them. `selection` says which cells are to be run here, `cells`
runs each in a process; `computed` holds the few tables that need no run. `gather` collects the outcomes, `measures` and
`cost` read a run, `beside` puts ours beside theirs.
"""
