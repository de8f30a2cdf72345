"""
Connections between the replicas of a raft group: frames over TCP, and the proof of the peer's identity.

This package transports raft messages and never judges them. Begin with `handshake.py`, then `server.py` and
`links.py`.
"""
