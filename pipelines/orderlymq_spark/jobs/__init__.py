"""
The pipelines, one module or folder per type; each has `run(name, spec, spark) -> Outcome`.

Code that several pipelines share is in `run`, `tables`, `source` and `sink`.
Begin with `catalogue`, the table of the types.
"""
