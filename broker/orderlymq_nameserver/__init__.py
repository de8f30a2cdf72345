"""
The name server: which topic has which queues on which broker group, for every client that asks.

Broker groups register here, clients poll. `routes` holds the known brokers and topics (pure); there a silent
or disconnected broker loses its address. `processor` answers requests (pure), `kv` stores administrators'
settings, `app` is the process. Imports only the protocol and runtime. Begin with `processor`.
"""
