"""
The remoting protocol: bytes to commands and back, and every codec that rides inside a command.

Pure: no sockets, clocks or logs. Import the modules by name (`from orderlymq_protocol.frame import codec`).
Begin with `frame` (bytes and commands), then `header`, `body` and `message` (what a command carries).
"""
