"""
Replicas without clock, disk or socket, and the helpers by which tests drive them.

This folder holds no tests.
Begin with `replica`.
"""
