"""
`orderlymq bench`: measure a cluster with sends and deliveries of the SDK, and judge their order.

Nothing here compares with other systems or draws figures: that is `bench/`, outside the packages. Begin with `command`.
`load` sends and consumes; `order` and `latencies` are pure and need little memory, even for a long run.
"""
