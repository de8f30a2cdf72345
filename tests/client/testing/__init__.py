"""Tests of the cluster for tests."""
