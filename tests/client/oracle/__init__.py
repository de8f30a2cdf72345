"""Tests of the order oracle."""
