"""
The SDK's test kit: a real cluster in the process of a test.

    from orderlymq.testing import Cluster

The fixture `orderlymq_cluster` gives such a cluster to a pytest test. The kit runs brokers, so it
is part of `orderlymq-server`.
"""

try:
    from orderlymq_testing.cluster import Cluster
except ModuleNotFoundError as error:
    raise ImportError(
        f"{error}; the test kit runs brokers: install it with: pip install orderlymq-server"
    ) from error

__all__ = ["Cluster"]
