"""Tests of consuming by key."""
