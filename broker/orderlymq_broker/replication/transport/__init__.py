"""
Connections between the replicas of a raft group: frames over TCP, and the proof of the peer's identity.

Nothing here knows raft: messages are carried, never judged. Begin with `handshake.py`, then `server.py` and `links.py`.
"""
