"""
Files of pipelines, alike on a mounted file system and in an object store.

Begin with `location`: what a place can do, and how a text becomes one. `local` and `objects` do it.
"""
