"""
Mutation testing: small changes of the core are made one by one, and somebody has to notice each.

``python -m tests.mutants`` (``make mutants``) makes the mutants of some modules, lets their unit tests judge
each one, then seeds of the simulator those that no test has noticed, and writes ``docs/evidence/mutants.md``. Why it is
built so stands in that page.
"""
