"""
The application's listeners: their callers, their arguments, and the hooks around them.

Nothing here knows brokers; which messages come next is decided in `core`.
Begin with `pool`; a listener gets a `context` beside the messages.
"""
