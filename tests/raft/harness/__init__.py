"""
Replicas without clock, disk or socket, and the languages in which tests speak with them.

No test is here.
Begin with `replica`.
"""
