"""
Frames: the byte stream of a connection as commands, and commands as bytes.

Not here: what the fields of a header or the bytes of a body mean. Begin with `command`, then `codec`.
"""
