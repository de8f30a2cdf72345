"""
Producers: ordered, plain, batch and transactional sends, request and reply, recalls of timers.

A key chooses its queue in `selectors.py`; a send is tried again in `delivery.py`. What both producers and consumers
need lives in `orderlymq.connection`. Begin with `producer.py`; `sendoutcome.py` tells the outcomes of failed sends apart.
"""
