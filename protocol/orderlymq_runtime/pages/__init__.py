"""
The HTTP pages of every process: health, metrics and status, who may read them, and the metrics of traffic and loop.

What a page says is its process's own: nothing here knows brokers or topics. Begin with `server.py`.
"""
