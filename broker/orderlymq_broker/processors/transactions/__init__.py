"""
Transactions: half messages, their commit and rollback, and the checks that ask producers for the outcome.

The table of open half messages is in ``state/transactions/``. ``send/sends.py`` hands half messages over to this
subpackage. Begin with ``halves.py``, then ``checks.py``.
"""
