"""
Exchange of every group member with brokers: subscriptions, rebalance, offsets, pulls, commits, locks.

No listener and no decision about messages lives here.
Begin with `calls`; `requests` makes the commands and reads the answers.
"""
