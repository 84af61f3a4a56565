"""A federation of real sites, on Flower."""

from umbel.flower.apps import CONFIG, Patience, client_app, server_app

__all__ = ["CONFIG", "Patience", "client_app", "server_app"]
