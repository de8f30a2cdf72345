"""
Consuming by key: lanes that brokers hand to this member, worked on side by side.

`core` decides and is pure, `events` is its vocabulary, `executor` runs its instructions as tasks, `calls` sends
requests to brokers.
docs/explanation/lanes.md defines a lane and says what brokers promise.
This folder does not consume whole queues (`push` does) and stores no lanes: brokers store them. Begin with `core.py`.
"""
