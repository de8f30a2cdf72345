"""
Transactions: half messages, their commit and rollback, and the checks that ask producers.

The tables of open halves are in ``state/transactions/``. A send hands a half message over from
``send/sends.py``. Begin with ``halves.py``, then ``checks.py``.
"""
