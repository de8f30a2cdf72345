"""
The order demo: many orders live through their steps while the leader is killed, and the oracle judges.

`orders` says what an order is, `producing` and `consuming` are the processes that take part, `run` starts and
watches them, `display` shows it. All of them append to one history file; nothing in the verdict comes from
anywhere else.
"""
