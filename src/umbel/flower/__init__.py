"""A federation of real sites, on Flower."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from umbel.flower.apps import CONFIG, Patience, client_app, server_app, table_model

__all__ = ["CONFIG", "Patience", "client_app", "server_app", "table_model"]


def __getattr__(name: str) -> Any:
    """The names of the apps, imported when first asked for: `umbel.flower.wire` and the engines do without them."""
    if name in __all__:
        return getattr(import_module("umbel.flower.apps"), name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
