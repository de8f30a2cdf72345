"""
Consumers that wait to be asked: plain pull, whose offsets the application keeps, and lite pull, which keeps them.

No listener is called here.
Begin with `groupreader`, which both are; `litepull` adds a share of the queues and kept offsets.
"""
