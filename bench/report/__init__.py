"""
The figures of a run as pages and pictures.

This package measures nothing.
Begin with `page`; `figures` has the arithmetic.
"""
