"""
The application's listeners: who calls them, what they are given, and the hooks around them.

Nothing here knows brokers; which messages come next is decided in `core`.
Begin with `pool`; `context` is what a listener gets beside the messages.
"""
