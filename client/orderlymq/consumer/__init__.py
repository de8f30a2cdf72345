"""
Consumers: push (ordered and concurrent), pull and lite pull, with offsets, assignment and listeners.

The decisions of the push consumer live in `core/`; sockets and connections live in `orderlymq.connection`.
Begin with `push.py`, which connects the core to the network and to the listener.
"""
