"""
Consuming by key: lanes that brokers hand to this member, worked on side by side.

`core` decides and is pure, `events` is its vocabulary; `executor` makes tasks of its instructions, `calls` speaks
with brokers. What a lane is and what brokers promise: docs/explanation/lanes.md. Begin with `core.py`.
"""
