"""`python -m umbel`."""

from umbel.cli import main

main()
