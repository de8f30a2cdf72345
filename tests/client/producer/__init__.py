"""Tests of the producers."""
