"""
Planted defects: what the simulator would notice.

Each is a small patch of a core, made in memory, that breaks one law of the product. ``catalogue.py`` lists
them all, ``search.py`` finds the seed that catches each, and a test holds the table in ``docs/explanation/simulator.md``
to what is found.
"""
