"""
Pipeline skew-report: load by queue and key, and how many queues a topic should have.

Begin with `job`, which also shows the advice; `model` computes it and is pure.
"""
