"""The server's app. What it runs is said in the run-config."""

from umbel.flower import server_app

app = server_app()
