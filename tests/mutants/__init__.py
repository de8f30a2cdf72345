"""
Mutation testing: small changes of the core are made one by one, and a test or a simulation must notice each.

``python -m tests.mutants`` (``make mutants``) makes the mutants of some modules and lets their unit tests judge each
one. Seeds of the simulator then judge those that no test has noticed. It writes ``docs/evidence/mutants.md``, which
explains the design.
"""
