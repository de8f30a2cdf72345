"""Refusals by the API server, by rights, by admission and by what is missing."""
