"""
The planner: from desired and observed state to actions, as pure functions.

`refusals` names what no cluster can become, `guard` what waits for a confirmation. No clock, network, file or log lives here, and
nothing that knows whether brokers are processes or pods.
Begin with `actions` (what a plan may ask for and what a backend observes), then `planner`.
"""
