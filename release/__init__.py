"""
Deliverables: wheels, the chart's package, a bill of materials and checksums.

Begin with ``distributions.toml``, then ``wheels.py``. Nothing that runs in production belongs here.
"""
