"""
Pipeline order-audit: proof that a topic or an archive is gapless and in order per key.

Begin with `job`; `order` checks the rows of one queue and is pure.
"""
