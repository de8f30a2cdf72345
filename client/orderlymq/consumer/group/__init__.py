"""
Exchange of every group member with brokers: subscriptions, rebalance, offsets, pulls, commits, locks.

This folder calls no listener and makes no decision about messages.
Begin with `calls`; `requests` builds the commands and reads the answers.
"""
