"""
The application's listeners: their callers, their arguments, and the hooks around them.

This folder knows no brokers; `core` decides which messages come next.
Begin with `pool`; a listener gets a `context` in addition to the messages.
"""
