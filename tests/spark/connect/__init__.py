"""Spark Connect: a client without Spark, and the server that runs its plans."""
