"""Tests of orderlymq_backup."""
