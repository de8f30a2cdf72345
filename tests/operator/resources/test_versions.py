"""
Both versions of the custom resources at a real API server: each reads what the other wrote, until v1alpha1 is removed.

`test_crd` checks without a server what both have in common.
"""

import asyncio
import copy
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest
from bench.apiload import ADMIN, NAMESPACE, Kube

from orderlymq_operator.kube.errors import ForbiddenError
from orderlymq_operator.kube.objects import drift
from orderlymq_operator.kube.objects.cluster import (
    group_set,
    identity_secret,
    name_server_set,
    operator_secret,
    service_objects,
)
from orderlymq_operator.kube.observe.inventory import read_item
from orderlymq_operator.kube.resources import OWN_KINDS, SECRETS, SERVICES, STATEFUL_SETS
from orderlymq_operator.resources import changewarnings, crd
from orderlymq_operator.resources.kinds import KINDS
from orderlymq_operator.resources.meta import GROUP, VERSION, VERSIONS
from tests.operator.kube.realapi import (
    administrator,
    needs_api_server,
    operator,
    real_api_server,
)
from tests.operator.kube.samples import cluster, environment

Json = dict[str, Any]
NEXT: Final = "v1beta1"
DEFINITIONS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
POLICIES: Final = "/apis/admissionregistration.k8s.io/v1"
PLACE: Final = {"pvc": {"claimName": "backups"}}
SPECS: Final[dict[str, Json]] = {
    "Cluster": {"groups": 2, "storage": {"size": "5Gi"}},
    "Topic": {"clusterRef": {"name": "one"}, "queues": 4, "deletionPolicy": "Delete"},
    "ConsumerGroup": {"clusterRef": {"name": "one"}, "concurrency": "Key"},
    "User": {"clusterRef": {"name": "one"}, "secretFrom": {"secret": {"name": "one"}}},
    "Pipeline": {
        "clusterRef": {"name": "one"},
        "type": "order-audit",
        "source": {"topic": "one"},
        "findings": "findings",
    },
    "Backup": {"clusterRef": {"name": "one"}, "destination": PLACE},
    "ScheduledBackup": {
        "clusterRef": {"name": "one"},
        "destination": PLACE,
        "schedule": "0 3 * * *",
    },
}
PLURALS: Final = {each.kind: each.plural for each in OWN_KINDS}

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(300),
    needs_api_server,
]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An API server with the chart's definitions."""
    folder: Path = tmp_path_factory.mktemp("api")
    with real_api_server(folder) as found:
        yield found


@pytest.fixture
async def kube(address: str) -> AsyncIterator[Kube]:
    async with administrator(address) as found:
        yield found


def path(kind: str, version: str, name: str = "") -> str:
    place = f"/apis/{GROUP}/{version}/namespaces/{NAMESPACE}/{PLURALS[kind]}"
    return f"{place}/{name}" if name else place


def made(kind: str, version: str, name: str) -> Json:
    return {
        "apiVersion": f"{GROUP}/{version}",
        "kind": kind,
        "metadata": {"name": name},
        "spec": SPECS[kind],
    }


def content(found: Json) -> Json:
    """Return an object without the version by which it was read."""
    return {key: value for key, value in found.items() if key != "apiVersion"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("one", "other"), [VERSIONS, VERSIONS[::-1]])
async def test_what_one_version_writes_the_other_reads(
    kube: Kube, kind: str, one: str, other: str
) -> None:
    """Law: an object written by one version reads the same by the other, with defaults and status."""
    name = f"by-{one}"
    await kube.call("POST", path(kind, one), made(kind, one, name))
    condition = {
        "type": "Ready",
        "status": "True",
        "reason": "Ready",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
        "message": "",
    }
    told = {"status": {"observedGeneration": 1, "conditions": [condition]}}
    await kube.call("PATCH", path(kind, other, f"{name}/status"), told)

    found = {version: await kube.call("GET", path(kind, version, name)) for version in VERSIONS}
    assert content(found[one]) == content(found[other])
    assert found[one]["status"]["conditions"] == [condition]
    (resource,) = (each for each in OWN_KINDS if each.kind == kind)
    item = read_item(resource, found[VERSION])
    assert item.manifest is not None, item.error


async def test_a_rule_holds_for_both(kube: Kube) -> None:
    """Law: a spec that one version refuses is refused by the other too."""
    for version in VERSIONS:
        wrong = made("Cluster", version, "wrong")
        wrong["spec"] = {"nameServers": {"replicas": 1}, "tls": {"mode": "Enforcing"}}
        with pytest.raises(RuntimeError, match="TLS needs secretName"):
            await kube.call("POST", path("Cluster", version), wrong)


async def test_warnings_reach_edits_of_either_version(kube: Kube, address: str) -> None:
    """Law: warnings are given for edits by either version, although the policies name only the stored one."""
    for number, each in enumerate(changewarnings.policies(spec_schema("Cluster"))):
        name = f"warn-{number}"
        policy = {"metadata": {"name": name}, "spec": each["spec"]}
        binding = {
            "metadata": {"name": name},
            "spec": {"policyName": name, "validationActions": ["Warn"]},
        }
        await kube.call("POST", f"{POLICIES}/validatingadmissionpolicies", policy)
        await kube.call("POST", f"{POLICIES}/validatingadmissionpolicybindings", binding)
    for version in VERSIONS:
        await kube.call("POST", path("Topic", version), made("Topic", version, f"warned-{version}"))
        for _ in range(100):  # The API server reads new policies once in a while.
            warned = await warnings_of(address, path("Topic", version, f"warned-{version}"))
            if warned:
                break
            await asyncio.sleep(0.1)
        assert "spec.deletionPolicy is Delete" in warned, version


async def warnings_of(address: str, place: str) -> str:
    """Return the API server's warnings for a deletion of an object."""
    headers = {"Authorization": f"Bearer {ADMIN}"}
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=False)) as session,
        session.delete(f"{address}{place}?dryRun=All", headers=headers) as answer,
    ):
        assert answer.status == 200
        return ", ".join(answer.headers.getall("Warning", []))


def spec_schema(kind: str) -> Json:
    found: Json = crd.schema(kind)["properties"]["spec"]
    return found


async def test_what_is_made_for_a_cluster_can_name_it_by_the_other_version(
    kube: Kube, address: str
) -> None:
    """Law: owner references are rewritten by an operator of the other version, without a restart, and back again.

    Kubernetes' garbage collection finds an owner by the reference's version, so all must be rewritten before v1alpha1 is
    removed: the operator does it at each reconcile, a person for Secrets, which the operator may not change.
    """
    owner = cluster()
    objects = [
        *service_objects(owner, environment(owner)),
        name_server_set(owner, environment(owner)),
        group_set(owner, "demo-0", environment(owner)),
    ]
    secrets = [identity_secret(owner, "secret"), {**operator_secret(owner, "x"), "immutable": True}]
    for each in (*objects, *secrets):
        each["metadata"]["namespace"] = NAMESPACE
    async with operator(address) as api:
        for each in drift.changes(objects, []):
            await api.make(each)
        for each in secrets:
            await api.create(SECRETS, NAMESPACE, each)
        before = {
            each["metadata"]["name"]: each for each in await api.list(STATEFUL_SETS, NAMESPACE)
        }
        for version in VERSIONS[::-1]:
            wanted = [by_version(each, version) for each in objects]
            live = [
                *await api.list(SERVICES, NAMESPACE),
                *await api.list(STATEFUL_SETS, NAMESPACE),
            ]
            found = drift.changes(wanted, live)
            assert len(found) == len(objects)
            for each in found:
                written = await api.apply(each)
                assert versions_of(written) == [version]
            for each in secrets:
                references = by_version(each, version)["metadata"]["ownerReferences"]
                change = {"metadata": {"ownerReferences": references}}
                name = each["metadata"]["name"]
                with pytest.raises(ForbiddenError):
                    await api.patch(SECRETS, NAMESPACE, name, change)
                written = await kube.call("PATCH", SECRETS.path(NAMESPACE, name), change)
                assert versions_of(written) == [version]
        for each in await api.list(STATEFUL_SETS, NAMESPACE):
            assert each["metadata"]["generation"] == 1
            assert each["spec"] == before[each["metadata"]["name"]]["spec"]


def by_version(made: Json, version: str) -> Json:
    """Return an object as an operator of *version* makes it."""
    found = copy.deepcopy(made)
    for each in found["metadata"]["ownerReferences"]:
        each["apiVersion"] = f"{GROUP}/{version}"
    return found


def versions_of(found: Json) -> list[str]:
    references = found["metadata"]["ownerReferences"]
    return [each["apiVersion"].rpartition("/")[2] for each in references]


async def test_a_chart_that_knows_one_version_can_come_back(kube: Kube) -> None:
    """Law: a rollback to a chart with one version loses nothing, not even what was written as v1beta1;
    the upgrade works again.
    """
    name = f"by-{NEXT}"
    before = await kube.call("GET", path("Topic", VERSION, name))
    place = f"{DEFINITIONS}/{PLURALS['Topic']}.{GROUP}"
    both = (await kube.call("GET", place))["spec"]["versions"]
    for versions in (both[:1], both):
        await kube.call("PATCH", place, {"spec": {"versions": versions}})
        assert await settled(kube, "GET", path("Topic", VERSION, name)) == before
        if len(versions) == 1:
            assert await is_gone(kube, path("Topic", NEXT))

    for _ in range(100):  # The API server takes a moment to serve a version.
        if not await is_gone(kube, path("Topic", NEXT), tries=1):
            break
        await asyncio.sleep(0.1)
    found = await settled(kube, "GET", path("Topic", NEXT, name))
    assert content(found) == content(before)


async def test_the_way_to_v1beta1_alone(kube: Kube) -> None:
    """Law: after the steps of docs/howto/upgrade.md no object is stored as v1alpha1, and none has changed.

    This test is the last, because v1alpha1 is gone after it.
    """
    before = {kind: (await kube.call("GET", path(kind, NEXT)))["items"] for kind in KINDS}
    assert all(before.values())
    for kind in KINDS:
        definition = await kube.call("GET", f"{DEFINITIONS}/{PLURALS[kind]}.{GROUP}")
        assert definition["status"]["storedVersions"] == [VERSION]
        place = f"{DEFINITIONS}/{definition['metadata']['name']}"
        versions = definition["spec"]["versions"]
        for each in versions:
            each["storage"] = each["name"] == NEXT
        await kube.call("PATCH", place, {"spec": {"versions": versions}})
        with pytest.raises(RuntimeError, match=r"storedVersions.*must remain in spec.versions"):
            await kube.call("PATCH", place, {"spec": {"versions": versions[1:]}})
        for each in before[kind]:
            await settled(kube, "PUT", path(kind, NEXT, each["metadata"]["name"]), each)
        await kube.call("PATCH", f"{place}/status", {"status": {"storedVersions": [NEXT]}})
        await kube.call("PATCH", place, {"spec": {"versions": versions[1:]}})

    for kind in KINDS:
        after = (await settled(kube, "GET", path(kind, NEXT)))["items"]
        assert [timeless(each) for each in after] == [timeless(each) for each in before[kind]]
        assert await is_gone(kube, path(kind, VERSION))


async def settled(kube: Kube, method: str, place: str, body: Json | None = None) -> Json:
    """Make a request again until the API server has taken over a definition."""
    for _ in range(100):
        try:
            return await kube.call(method, place, body)
        except RuntimeError as error:
            if "(re)initializing" not in str(error):
                raise
        await asyncio.sleep(0.1)
    raise AssertionError(f"{place} is not served again")


async def is_gone(kube: Kube, place: str, tries: int = 100) -> bool:
    """Wait until a version is no longer served, which takes a moment."""
    for _ in range(tries):
        try:
            await kube.call("GET", place)
        except (RuntimeError, aiohttp.ContentTypeError):  # The answer is plain text then.
            return True
        await asyncio.sleep(0.1)
    return False


def timeless(found: Json) -> Json:
    """Return an object without what each write changes."""
    kept = {
        key: value
        for key, value in found["metadata"].items()
        if key not in ("resourceVersion", "managedFields")
    }
    return found | {"metadata": kept}
