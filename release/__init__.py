"""
Deliverables: wheels, the chart's package, a bill of materials and checksums.

Begin with ``distributions.toml``, then ``wheels.py``. Production code does not belong here.
"""
