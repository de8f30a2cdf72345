"""Pipelines before they run."""
