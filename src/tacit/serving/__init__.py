"""Recommendations over HTTP, and what every server here has in common: who may ask, and how errors are said."""
