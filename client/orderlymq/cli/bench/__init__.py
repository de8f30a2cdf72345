"""
`orderlymq bench`: measure a cluster with sends and deliveries of the SDK, and judge their order.

Nothing here compares with other systems or draws figures: that is `bench/`, outside the packages.
Begin with `command`. `load` sends and consumes; `order` and `latencies` are pure and keep what they are given in
little room, however long a run is.
"""
