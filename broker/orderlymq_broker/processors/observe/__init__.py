"""
Observations for operators: lag, blocked queues, failing messages, hot queues and keys, rates, the status.

Observations change no state and cost a send almost nothing. RocketMQ's own statistics requests are in
``admin/statistics.py``. Begin with ``watch.py``.
"""
