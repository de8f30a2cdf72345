"""
The console: pages that show an on-call engineer what stands still, who holds it, and what to do.

Rules: it uses the SDK and its admin client, never broker code. While nobody looks, it asks each leader once a minute; it
never asks a question more than once a second. A value that could not be read is unknown, with a reason; it is never zero.
Begin with `app.py`, which wires everything; `collector.py` decides when a broker is asked, and `cluster.py` asks it.
"""
