"""
The invariants of every run, read from the log and from what clients saw.

Nothing here acts.
Begin with `safety`, which calls the others.
"""
