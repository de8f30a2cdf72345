"""
The name server: which topic has which queues on which group, for every client that asks.

Groups register here, clients poll. `routes` holds what is known (pure): there a broker that is silent or disconnected
loses its address. `processor` answers requests (pure), `kv` keeps what administrators set, `app` is the process. Imports only
the protocol and runtime. Begin with `processor`.
"""
