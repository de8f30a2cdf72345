"""
Sockets below every protocol: addresses, dialing, listening, and the budget of unfinished input.

Nothing here knows commands, TLS or HTTP.
Begin with `listener` for servers and with `dial` for clients.
"""
