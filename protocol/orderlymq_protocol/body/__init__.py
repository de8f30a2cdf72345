"""
Bodies: the JSON objects that commands carry, as dataclasses.

Not here: messages, which are binary (message). `declaration` says how a body is declared; import all bodies from
`catalogue`; the other modules hold them by subject. Begin with `declaration.py`.
"""
