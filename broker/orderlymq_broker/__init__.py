"""
The broker process: one replica of one raft group.

Inside, imports only point downwards: app > net > replication > processors > state > store.
"""
