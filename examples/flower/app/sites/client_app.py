"""A site's app."""

from sites.data import load_data
from umbel.flower import client_app

app = client_app(load_data)
