"""From what clients say of themselves to labels: signatures, distances, trees, cuts."""
