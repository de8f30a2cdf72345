"""
The replicated state machine: records go in, tables change, outcomes come out. Pure.

The subpackages are those of ``processors/`` that need tables. No module here reads a clock, a setting or a
connection. Begin with ``statemachine.py``, ``records.py`` and ``broker.py``.
"""
