"""
How the replicas of a group reach each other: frames over TCP, and the proof of who is at the other end.

Nothing here knows raft: messages are carried, never judged. Begin with `handshake.py`, then `server.py` and `links.py`.
"""
