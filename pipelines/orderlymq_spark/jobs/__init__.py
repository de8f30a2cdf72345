"""
The pipelines, one module or folder per type; each has `run(name, spec, spark) -> Outcome`.

What two of them share lives below: `run`, `tables`, `source`, `sink`.
Begin with `catalogue`, the table of the types.
"""
