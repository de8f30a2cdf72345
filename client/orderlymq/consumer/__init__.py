"""
Consumers: push (ordered, concurrent, by key), pull and lite pull; here are their settings, assignment and counters.

Rule: `core` and `lanes` decide without sockets; sockets and connections live in `orderlymq.connection`.
Begin with `push.consumer`, which connects the core to the network and to the listener.
"""
