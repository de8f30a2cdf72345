"""
The broker process: one replica of one raft group.

Inside, imports only point downwards: app > server > replication > processors > core > state > store.
Nothing here is imported by the SDK or the operator: they meet on the wire. Begin with ``app.py``, which wires everything.
"""
