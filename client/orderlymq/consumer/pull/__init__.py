"""
Consumers that wait to be asked: plain pull, whose offsets the application keeps, and lite pull, which keeps them.

These consumers call no listener.
Begin with `groupreader`, the base class of both; `litepull` adds a share of the queues and keeps the offsets.
"""
