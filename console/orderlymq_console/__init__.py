"""
The console: pages that show an on-call engineer what stands still, who holds it, and what to do.

Rules: it uses the SDK and its administrator's client, never a broker's own code; nothing is asked of brokers while nobody
looks, and nothing more often than once a second; what could not be asked is unknown with a reason, never zero.
Begin with `app.py`, which wires everything; `collector.py` decides when a broker is asked, and `cluster.py` asks it.
"""
