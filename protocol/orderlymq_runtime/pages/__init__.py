"""
The HTTP pages of every process: health, metrics and status, who may read them, and the metrics of traffic and loop.

Each process supplies the content of its pages: nothing here knows brokers or topics. Begin with `server.py`.
"""
