"""
Pipelines dead-letters and redrive: why messages were given up, and how they go back.

Begin with `letters`, which both share; `report` and `redrive` are the pipelines, `plan` is pure.
"""
