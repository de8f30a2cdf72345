"""
Administration: topics, groups, offsets, single messages, settings and figures of a cluster.

An `AdminClient` uses the producer and the pull consumer; nothing that sends or consumes imports this package.
Begin with `client.py`.
"""
