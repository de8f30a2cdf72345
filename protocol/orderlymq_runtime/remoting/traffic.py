"""
Counters of remoting traffic.

Rule: counting costs an integer addition. The hot path adds to plain fields of `Traffic`; only a scrape
turns them into metrics (``pages/trafficmetrics.py``), so that a client needs no metrics library.
"""

from collections import Counter
from dataclasses import dataclass, field


# Not frozen: these are counters, touched for every chunk that is read.
@dataclass(slots=True)
class Traffic:
    """Traffic of one server or client since it was made."""

    connections: int = 0
    accepted: int = 0
    frames_in: int = 0
    frames_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    errors: Counter[str] = field(default_factory=Counter)
