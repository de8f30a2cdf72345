"""Brokers call name servers as they are called themselves: which pods are replaced first when the mode of TLS changes."""

from pathlib import Path

import pytest

from orderlymq_operator.kube.resources import SECRETS
from tests.operator.kube.reconcile.test_missing_secrets import evicted, pair
from tests.operator.kube.smallcluster import small_cluster


@pytest.mark.parametrize(
    ("before", "after", "first"),
    [
        ("Permissive", "Enforcing", {"demo-0-0"}),
        ("Disabled", "Permissive", {"demo-0-0", "demo-nameserver-0"}),
    ],
)
async def test_a_broker_is_let_in_by_name_servers_all_the_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, before: str, after: str, first: set[str]
) -> None:
    """What comes second waits until all of the first have the new form; here none of them comes back."""
    tls = {"secretName": "pair"}
    async with small_cluster(monkeypatch.setattr, tls={**tls, "mode": before}) as small:
        small.server.put(SECRETS, pair(tmp_path))
        await evicted(small)
        small.change(tls={**tls, "mode": after})

        assert (await evicted(small))[0] == first
