"""
The client programs of a run, and what they write into its history.

Nothing here judges; `invariants` reads the history.
Begin with `programs`, which starts them.
"""
