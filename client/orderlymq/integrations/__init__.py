"""
Other libraries on top of OrderlyMQ, each an extra of the SDK: `orderlymq[faststream]`, `orderlymq[taskiq]`.

Rule: nothing else of the SDK imports this room. Begin with `taskiq.py`, or with `faststream/broker.py`.
"""
