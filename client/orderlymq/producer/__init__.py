"""
Producers: ordered, plain, batch and transactional sends, request and reply, recalls of timers.

`selectors.py` chooses the queue of a key, and `delivery.py` retries sends. `orderlymq.connection` holds the parts
that consumers need too. Begin with `producer.py`; `sendoutcome.py` distinguishes the outcomes of failed sends.
"""
