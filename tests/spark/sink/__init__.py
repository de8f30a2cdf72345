"""Sending rows to topics."""
