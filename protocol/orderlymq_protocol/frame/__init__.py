"""
Frames: the byte stream of a connection as commands, and commands as bytes.

Not here: the meaning of header fields and of the bytes of a body. Begin with `command`, then `codec`.
"""
