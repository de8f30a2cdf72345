"""
The decisions of a push consumer: events in, instructions out, for each assigned queue.

This folder uses no clock, socket, thread, random number or log; `orderlymq.consumer.push.consumer` performs the
instructions.
Begin with `events.py`, then read `ordered.py` or `concurrent.py`.
"""
