"""
The push consumer around its core: start and end, calls to brokers and requests from them.

`core` and `lanes` choose the next messages; this package never does.
Begin with `consumer`; `executor` performs the instructions of the core.
"""
