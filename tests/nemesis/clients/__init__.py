"""
The client programs of a run, and the events that they write into its history.

Nothing here judges; `invariants` reads the history.
Begin with `programs`, which starts them.
"""
