"""Reconciles of Pipelines, and the objects that they make."""
