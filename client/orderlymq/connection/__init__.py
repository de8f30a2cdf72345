"""
A client's connection to the cluster: routes, heartbeats, identity, credentials, commands on the wire, traces.

No rule of a producer or a consumer lives here.
Begin with `instance.py`, which producers, consumers and admin clients share.
"""
