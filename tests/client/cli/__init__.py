"""Tests of the orderlymq command."""
