"""Tests of a client's connection to the cluster."""
