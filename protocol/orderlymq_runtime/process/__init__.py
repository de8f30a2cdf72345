"""
The life of a process: its event loop, signals, log lines, background tasks, timers and open files.

Nothing here handles a connection or a protocol.
Begin with `loop`; `supervisor` owns every background task.
"""
