"""
The planner: pure functions that turn desired and observed state into actions.

It uses no clock, network, file or log, and does not know whether brokers are processes or pods. `refusals` says what is
refused, `guard` what needs confirmation. Begin with `actions` (actions and observed state), then read `planner`.
"""
