"""
Consuming by key: lanes that brokers hand to this member, worked on side by side.

`core` decides and is pure, `executor` runs its instructions, `calls` asks brokers; lanes: docs/explanation/lanes.md.
This folder consumes no whole queues (`push` does) and stores no lanes (brokers do). Begin with `core.py`.
"""
