"""Tests of what the push consumer's core decides."""
