"""The nemesis: real processes under faults drawn from a seed; ``python -m tests.nemesis --help``."""
