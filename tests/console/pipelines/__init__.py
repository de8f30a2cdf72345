"""Tests of what the console reads of pipelines."""
