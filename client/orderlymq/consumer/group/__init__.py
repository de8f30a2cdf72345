"""
What every member of a consumer group exchanges with brokers: subscriptions, offsets, pulls, commits, locks.

No listener and no decision about messages lives here.
Begin with `calls`; `requests` makes the commands and reads the answers.
"""
