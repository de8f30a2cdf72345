"""
Consuming by key: lanes that brokers hand to this member, worked on side by side.

`core` decides and is pure, `events` is its vocabulary; `executor` makes tasks of its instructions, `calls` speaks
with brokers. What a lane is and what brokers promise: docs/explanation/lanes.md.
Nothing here consumes whole queues (`push`), and no lane is kept here: brokers keep them. Begin with `core.py`.
"""
