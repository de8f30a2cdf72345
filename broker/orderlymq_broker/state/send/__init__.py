"""
The duplicate window: which sends of ordered topics are known, and where their first copy is.

Who asks it is ``processors/send/``.
"""
