"""The nemesis: real processes under faults from a seed; ``python -m tests.nemesis --help``."""
