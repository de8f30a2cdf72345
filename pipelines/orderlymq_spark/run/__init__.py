"""
How a pipeline runs in a process: its session, its stream, its report and its outcome.

What one type of pipeline does lives in `jobs`.
Begin with `stream`.
"""
