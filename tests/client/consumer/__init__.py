"""Tests of the consumers around their cores."""
