"""
The life of a process: its event loop, signals, log lines, background tasks, timers and open files.

No connection and no protocol lives here.
Begin with `loop`; `supervisor` owns every background task.
"""
