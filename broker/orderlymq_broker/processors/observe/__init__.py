"""
Observations for operators: lag, blocked queues, failing messages, hot queues and keys, rates, the status.

Observing changes no state and costs a send next to nothing. RocketMQ's own statistics requests are in
``admin/statistics.py``. Begin with ``watch.py``.
"""
