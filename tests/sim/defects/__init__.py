"""
Planted defects, which the simulator must catch.

Each is a small patch of a core, made in memory, that breaks one law of the product.
``catalogue.py`` lists them all and ``search.py`` finds the seed that catches each. A test compares
the table in ``docs/explanation/simulator.md`` with them.
"""
