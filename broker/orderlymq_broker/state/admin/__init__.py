"""
Tables that administrators change: accounts with their white lists, and settings changed at run time.

``processors/admin/access.py`` decides what an account may do. Begin with ``access.py``.
"""
