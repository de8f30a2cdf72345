"""Objects older than a rule, at a real API server: only an edit of what the rule is about is refused."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest
from bench.apiload import NAMESPACE, Kube

from orderlymq_operator.kube.resources import CLUSTERS, USERS, Resource
from orderlymq_operator.resources import crd
from orderlymq_operator.resources.kinds import KINDS
from tests.operator.kube.realapi import administrator, needs_api_server, real_api_server

Json = dict[str, Any]
RULES: Final = "x-kubernetes-validations"
DEFINITIONS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
USER: Final = {"clusterRef": {"name": "demo"}}
LISTENER: Final = {"type": "LoadBalancer", "port": 9095}
# Objects that break a rule about the whole object, and a later harmless edit of their specs.
OLDER: Final[list[tuple[Resource, str, Json, Json]]] = [
    (USERS, "bob", USER, {"admin": True}),
    (USERS, "some.body", USER, {"admin": True}),
    (USERS, "b" * 64, USER, {"admin": True}),
    (CLUSTERS, "4711", {}, {"groups": 2}),
    (CLUSTERS, "c" * 40, {"listeners": [{"name": "outside-world", **LISTENER}]}, {"groups": 2}),
]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with real_api_server(tmp_path_factory.mktemp("api")) as found:
        yield found


@asynccontextmanager
async def former_definition(kube: Kube, resource: Resource) -> AsyncIterator[None]:
    """Remove the kind's rules about the whole object for a while."""
    place = f"{DEFINITIONS}/{resource.plural}.orderlymq.io"
    now = crd.definition(resource.kind)["spec"]["versions"]
    before = crd.definition(resource.kind)["spec"]["versions"]
    for version in before:
        del version["schema"]["openAPIV3Schema"][RULES]
    await kube.call("PATCH", place, {"spec": {"versions": before}})
    await until(kube, resource, has_rules=False)
    yield
    await kube.call("PATCH", place, {"spec": {"versions": now}})
    await until(kube, resource, has_rules=True)


async def until(kube: Kube, resource: Resource, *, has_rules: bool) -> None:
    """Wait until the API server uses the definition that it was given."""
    for _ in range(100):
        try:
            await create(kube, resource, "no.label", dryRun="All")
        except RuntimeError:
            if has_rules:
                return
        else:
            if not has_rules:
                return
        await asyncio.sleep(0.1)
    raise AssertionError("the API server does not take the definition up")


async def create(
    kube: Kube, resource: Resource, name: str, spec: Json | None = None, **more: str
) -> None:
    made = {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {"name": name, "finalizers": ["orderlymq.io/brokers"]},
        "spec": spec or (USER if resource == USERS else {}),
    }
    await kube.call("POST", resource.path(NAMESPACE), made, **more)


@needs_api_server
@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("resource", "name", "spec", "later"), OLDER, ids=[each[1][:9] for each in OLDER]
)
async def test_an_object_from_before_a_rule_gets_its_status_and_can_be_deleted(
    address: str, resource: Resource, name: str, spec: Json, later: Json
) -> None:
    """Law: an object older than a rule still gets statuses and can be deleted;
    only its creation or an edit of that field is refused.
    """
    async with administrator(address) as kube:
        async with former_definition(kube, resource):
            await create(kube, resource, name, spec)
        place = resource.path(NAMESPACE, name)

        await kube.call("PATCH", f"{place}/status", {"status": {"observedGeneration": 1}})
        await kube.call("PATCH", place, {"spec": later})
        await kube.call("DELETE", place)
        await kube.call("PATCH", place, {"metadata": {"finalizers": None}})
        with pytest.raises(RuntimeError, match="not found"):
            await kube.call("GET", place)

        with pytest.raises(RuntimeError, match="is invalid"):
            await create(kube, resource, name, spec, dryRun="All")


@needs_api_server
async def test_a_listener_whose_name_is_too_long_is_refused_when_it_comes(address: str) -> None:
    """Law: a new listener with a too long name is refused, even in an old object."""
    async with administrator(address) as kube:
        await create(kube, CLUSTERS, "c" * 40)
        change = {"spec": {"listeners": [{"name": "outside-world", **LISTENER}]}}
        with pytest.raises(RuntimeError, match="choose a shorter name for the listener"):
            await kube.call("PATCH", CLUSTERS.path(NAMESPACE, "c" * 40), change)


@pytest.mark.parametrize("kind", KINDS)
def test_every_rule_of_the_whole_knows_what_was_before(kind: str) -> None:
    """Law: each rule about the whole object compares with the old one, because the API server does not skip it by itself."""
    assert all(each["optionalOldSelf"] for each in crd.schema(kind)[RULES])
