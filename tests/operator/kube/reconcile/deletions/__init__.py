"""Deletions of objects, groups and replicas, and what delays them."""
