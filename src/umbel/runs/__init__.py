"""A run from its recipe to its result."""
