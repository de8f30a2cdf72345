"""
The remoting protocol: bytes to commands and back, and every codec that rides inside a command.

Pure: no sockets, clocks or logs. Import the modules by name (`from orderlymq_protocol import framing`).
Start reading at `framing`, then `command`, `headers` and `record`.
"""
