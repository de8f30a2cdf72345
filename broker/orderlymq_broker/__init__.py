"""
The broker process: one replica of one raft group.

Inside, imports only point downwards: app > server > replication > processors > state > store.
"""
