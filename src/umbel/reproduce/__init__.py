"""A paper's table: its cells as recipes, its printed figures beside ours.

`papers/*.toml` holds the tables as data; `table` reads them, `cells` runs them, `measures` reads a run, `computed` holds
the few tables that need no federation, `compare` puts ours beside theirs.
"""
