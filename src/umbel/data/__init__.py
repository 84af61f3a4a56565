"""Data sets, who holds which rows, and what happens to them."""
