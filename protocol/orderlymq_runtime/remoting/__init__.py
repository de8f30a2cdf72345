"""
The remoting protocol on a connection: clients, servers, and what they count and log.

Nothing here decides what a command means.
Begin with `connection`: `client` opens connections, `server` accepts them.
"""
