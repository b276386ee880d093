"""The engine: methods over stacked clients, the two loops, and what travels between client and server."""
