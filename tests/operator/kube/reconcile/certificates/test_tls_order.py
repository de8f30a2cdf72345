"""Which pods are replaced first when the TLS mode changes: brokers must always be able to call name servers."""

from pathlib import Path

import pytest

from orderlymq_operator.kube.objects.pods import name_server_pod
from orderlymq_operator.kube.observe.cluster import Live, with_forms
from orderlymq_operator.kube.observe.pods import pod_facts
from orderlymq_operator.kube.resources import SECRETS
from orderlymq_operator.plan.actions import ObservedNameServer
from tests.operator.kube.reconcile.refusals.test_missing_secrets import evicted, pair
from tests.operator.kube.samples import IMAGE, cluster, environment, pod
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
    """Law: the second kind of pod waits until all pods of the first kind have the new mode; here none of them comes back."""
    tls = {"secretName": "pair"}
    async with small_cluster(monkeypatch.setattr, tls={**tls, "mode": before}) as small:
        small.server.put(SECRETS, pair(tmp_path))
        await evicted(small)
        small.change(tls={**tls, "mode": after})

        assert (await evicted(small))[0] == first


@pytest.mark.parametrize("mode", ["Permissive", "Enforcing"])
def test_pages_with_a_token_do_not_say_which_calls_a_name_server_takes(mode: str) -> None:
    """Law: https pages do not prove that a name server takes TLS only: a Permissive one also takes plain calls,
    so brokers turn to TLS first.
    """
    token = {"pagesToken": {"secretName": "pages"}}
    wanted = cluster(tls={"mode": mode, "secretName": "pair"}, security=token)
    template = name_server_pod(wanted, image=IMAGE, pull_policy="Always", revision="before")
    made = pod("demo-nameserver-0")
    made["spec"] |= template["spec"]
    made["metadata"] |= template["metadata"]
    live = Live(pods={"demo-nameserver-0": pod_facts(made)})

    found = with_forms({0: ObservedNameServer()}, live, environment(wanted))

    assert found[0].serves_plain is (mode == "Permissive")
