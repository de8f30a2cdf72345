"""
Tables that administrators change: accounts with their white lists, and settings changed at run time.

What an account may do is decided in ``processors/admin/access.py``. Begin with ``access.py``.
"""
