"""Tests of the blocking clients."""
