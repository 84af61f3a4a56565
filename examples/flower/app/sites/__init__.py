"""The pair of apps: Flower ships this folder to the server app and to every node."""
