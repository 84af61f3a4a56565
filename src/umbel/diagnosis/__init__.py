"""Should I cluster, how, and what is it worth? What clients differ in, and a short trial of what could be trained."""
