"""
Sending rows to topics: rows as messages, and the writer that sends each once and in order.

This package reads no topics.
Begin with `writer`; `messages` gives each row its queue and its identity.
"""
