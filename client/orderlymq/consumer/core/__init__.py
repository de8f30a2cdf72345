"""
The decisions of a push consumer: events in, instructions out, for each assigned queue.

No clock, socket, thread, randomness or log is used here; `orderlymq.consumer.push.consumer` performs the instructions.
Begin with `events.py`, then read `ordered.py` or `concurrent.py`.
"""
