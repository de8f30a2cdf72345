"""What brokers may change in pods, at a real API server with the chart's policy."""

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from bench.apiload import NAMESPACE, Kube

from orderlymq_broker.server.podlabel import LEADER, ROLE, TERM, ApiServer, PodLabel
from orderlymq_broker.settings import PodSettings
from orderlymq_operator.kube.objects.cluster import account_objects
from orderlymq_operator.kube.resources import resource_of
from tests.operator.kube.realapi import administrator, needs_api_server, real_api_server
from tests.operator.kube.samples import cluster

pytestmark = [pytest.mark.long, pytest.mark.timeout(300), needs_api_server]

_CHART = Path(__file__).parents[4] / "charts" / "orderlymq" / "files"
_ADMISSION = "/apis/admissionregistration.k8s.io/v1"
_PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
_NAMES = ("demo-0-0", "demo-0-1", "demo-1-0")
_IMAGE = {"spec": {"containers": [{"name": "broker", "image": "another"}]}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A real API server with the pods of a Cluster of two groups, its brokers' rights and the chart's policy."""
    folder = tmp_path_factory.mktemp("api")
    with real_api_server(folder) as address:
        asyncio.run(_begin(address))
        yield address, folder


async def _begin(address: str) -> None:
    async with administrator(address) as kube:
        for made in account_objects(cluster(groups=2)):
            await kube.call("POST", resource_of(made).path(NAMESPACE), made)
        for name in _NAMES:
            labels = {"orderlymq.io/cluster": "demo", "orderlymq.io/group": name.split("-")[1]}
            meta = {"name": name, "labels": labels, "annotations": {"orderlymq.io/revision": "1"}}
            spec = {
                "serviceAccountName": "demo-broker",
                "containers": [{"name": "broker", "image": "orderlymq:1"}],
            }
            await kube.call("POST", _PODS, {"metadata": meta, "spec": spec})
        spec = yaml.safe_load((_CHART / "brokerpods.yaml").read_text())
        binding = {"policyName": "broker-pods", "validationActions": ["Deny"]}
        named = {"metadata": {"name": "broker-pods"}}
        for kind, what in (("policies", spec), ("policybindings", binding)):
            path = f"{_ADMISSION}/validatingadmission{kind}"
            await kube.call("POST", path, {**named, "spec": what})
        token = await _token(kube, "demo-0-0")
        for number in range(300):  # API servers learn of a policy after a moment.
            change = {"metadata": {"labels": {"number": str(number)}}}
            if await _patched(address, token, "demo-0-1", change):
                break
            await asyncio.sleep(0.2)


async def _token(kube: Kube, pod: str) -> str:
    """Return the token that kubelet gives a pod."""
    found = await kube.call("GET", f"{_PODS}/{pod}")
    bound = {"kind": "Pod", "apiVersion": "v1", "name": pod, "uid": found["metadata"]["uid"]}
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/demo-broker/token"
    answer = await kube.call("POST", path, {"spec": {"boundObjectRef": bound}})
    return str(answer["status"]["token"])


async def _patched(address: str, token: str, pod: str, change: dict[str, Any]) -> str:
    """Patch a pod as a broker; return the refusal, empty if there is none."""
    headers = {
        "Authorization": f"Bearer {token}",
        "Content-Type": "application/strategic-merge-patch+json",
    }
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=False)) as session,
        session.patch(f"{address}{_PODS}/{pod}", json=change, headers=headers) as answer,
    ):
        found = await answer.json()
        return str(found["message"]) if answer.status >= 400 else ""


_REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("demo-0-1", _IMAGE, "may not change the spec"),
    ("demo-0-0", _IMAGE, "may not change the spec"),
    ("demo-0-1", {"metadata": {"labels": {"orderlymq.io/group": "1"}}}, "no label"),
    ("demo-0-1", {"metadata": {"labels": {"orderlymq.io/cluster": None}}}, "no label"),
    ("demo-0-1", {"metadata": {"labels": {"more": "x"}}}, "no label"),
    ("demo-0-1", {"metadata": {"annotations": {"orderlymq.io/revision": None}}}, "no annotation"),
    ("demo-0-1", {"metadata": {"annotations": {"more": "x"}}}, "no annotation"),
    ("demo-0-1", {"metadata": {"finalizers": ["example.com/stays"]}}, "finalizers"),
    ("demo-1-0", {"metadata": {"labels": {ROLE: LEADER}}}, "another broker group"),
]


@pytest.mark.parametrize(("pod", "change", "words"), _REFUSED)
async def test_a_broker_changes_nothing_of_a_pod_but_who_leads_its_group(
    server: tuple[str, Path], pod: str, change: dict[str, Any], words: str
) -> None:
    """Law: a broker may change only the leader label and term of its own group's pods, not their images."""
    address, _ = server
    async with administrator(address) as kube:
        token = await _token(kube, "demo-0-0")

    assert words in await _patched(address, token, pod, change)


async def test_brokers_set_label_and_term_under_the_policy(
    server: tuple[str, Path], tmp_path: Path
) -> None:
    """Law: a leader may label itself and remove the label from its siblings and from itself."""
    address, folder = server
    (tmp_path / "ca.crt").write_bytes((folder / "certificates" / "apiserver.crt").read_bytes())
    async with administrator(address) as kube:
        for term, name, other in ((7, "demo-0-0", "demo-0-1"), (8, "demo-0-1", "demo-0-0")):
            (tmp_path / "token").write_text(await _token(kube, name))
            settings = PodSettings(namespace=NAMESPACE, name=name, siblings=[other])
            label = PodLabel(settings, ApiServer(address, tmp_path), partial(int, term))
            label.serving_began()
            async with asyncio.timeout(30):
                await label.wait()
            await label.close()
            own, sibling = [
                (await kube.call("GET", f"{_PODS}/{each}"))["metadata"] for each in (name, other)
            ]
            assert (own["labels"][ROLE], own["annotations"][TERM]) == (LEADER, str(term))
            assert ROLE not in sibling["labels"]


async def test_who_is_no_broker_changes_pods_as_ever(server: tuple[str, Path]) -> None:
    """Law: the policy concerns the brokers' accounts only."""
    address, _ = server
    async with administrator(address) as kube:
        change = {"metadata": {"labels": {"team": "orders"}}}
        found = await kube.call("PATCH", f"{_PODS}/demo-1-0", change)

    assert found["metadata"]["labels"]["team"] == "orders"
