"""
Replicas without clock, disk or socket, and the helpers by which tests drive them.

No test is here.
Begin with `replica`.
"""
