"""
Pipeline skew-report: load by queue and key, and how many queues a topic should have.

Begin with `job`; `model` gives the advice and is pure, `page` shows it.
"""
