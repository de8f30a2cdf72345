"""
How a pipeline runs in a process: its session, its stream, its report and its outcome.

`jobs` has the code of each type of pipeline.
Begin with `stream`.
"""
