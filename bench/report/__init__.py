"""
The figures of a run as pages and pictures.

Nothing here measures.
Begin with `page`; `figures` has the arithmetic.
"""
