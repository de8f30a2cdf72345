"""
The remoting protocol on a connection: clients, servers, and what they count and log.

No command is decided about here; no socket is opened here but by `orderlymq_runtime.sockets`.
Begin with `connection`: `client` opens connections, `server` accepts them.
"""
