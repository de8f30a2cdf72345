"""
Files of pipelines, with one interface for mounted file systems and object stores.

Begin with `location`, the interface, and `addresses`, which parses texts. `local` and `objects` implement it.
"""
