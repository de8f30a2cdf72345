"""
The invariants of every run, read from the log and from what clients received.

Nothing here acts.
Begin with `safety`, which calls the others.
"""
