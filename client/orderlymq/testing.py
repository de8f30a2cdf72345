"""
The test kit beside the SDK: a real cluster in the process of a test.

    from orderlymq.testing import Cluster

The fixture `orderlymq_cluster` gives such a cluster to a test of pytest. The kit runs brokers, so that `orderlymq-server` brings it.
"""

try:
    from orderlymq_testing.cluster import Cluster
except ModuleNotFoundError as error:
    raise ImportError(
        f"{error}; the test kit runs brokers: install it with: pip install orderlymq-server"
    ) from error

__all__ = ["Cluster"]
