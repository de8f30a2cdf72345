"""
The broker process: one replica of one raft group.

Imports only point downwards: app > server > replication > processors > core > state > store. The SDK and the operator
import nothing from here: they use the protocol on the wire. Begin with ``app.py``, which wires everything.
"""
