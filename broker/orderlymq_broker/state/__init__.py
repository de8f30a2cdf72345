"""
The replicated state machine: records go in, tables change, outcomes come out. Pure.

The rooms are those of ``processors/``, as far as they have tables. Nothing here reads a clock, a setting or a
connection. Begin with ``machine.py``, ``records.py`` and ``broker.py``.
"""
