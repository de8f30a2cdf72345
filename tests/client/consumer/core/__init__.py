"""Tests of the push consumer's decisions."""
