"""A deletion never waits for an operator that is uninstalled or has lost its rights."""

import asyncio
import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from aiohttp import web

from orderlymq_operator.kube import election
from orderlymq_operator.kube.__main__ import release
from orderlymq_operator.kube.cachedstate import NotReadError, deciding_from_cache
from orderlymq_operator.kube.competitors import ANNOTATION_SERVES
from orderlymq_operator.kube.errors import RetryLaterError
from orderlymq_operator.kube.metrics import OperatorMetrics
from orderlymq_operator.kube.objects.names import BACKUP_FINALIZER, FINALIZER
from orderlymq_operator.kube.observe.credentials import Credentials
from orderlymq_operator.kube.observe.desired import desired_state
from orderlymq_operator.kube.observe.inventory import Inventory, read_item
from orderlymq_operator.kube.reconcile.backend import Defaults
from orderlymq_operator.kube.reconcile.cluster import ClusterReconciler
from orderlymq_operator.kube.reconcile.finalizers import GIVE_UP_S, Finalizers, release_everything
from orderlymq_operator.kube.resources import (
    BACKUPS,
    CLUSTERS,
    EVENTS,
    LEASES,
    PARTS,
    TOPICS,
    USERS,
)
from orderlymq_operator.kube.settings import parse
from orderlymq_operator.plan.actions import (
    ConditionReport,
    Observed,
    ObservedGroup,
    ObservedNameServer,
    TopicConfig,
)
from tests.operator.kube.apiserver import serving_api
from tests.operator.kube.objectserver import ObjectServer
from tests.operator.kube.rights import needed, of_file
from tests.operator.kube.samples import IMAGE, NAMESPACE, cluster, custom


async def test_the_last_job_lets_every_kind_go_and_has_the_rights_for_it() -> None:
    """Law: the uninstallation's job removes all finalizers, and the chart grants it exactly the rights that it uses."""
    server = ObjectServer()
    for resource in (*PARTS, BACKUPS):
        finalizer = BACKUP_FINALIZER if resource == BACKUPS else FINALIZER
        server.put(resource, custom(resource.kind, "held", finalizers=["other", finalizer]))

    async with server.serving() as api:
        code = await release(api, parse(["--watch-namespaces", "*"]))

    left = {tuple(each["metadata"]["finalizers"]) for each in server.objects.values()}
    assert (code, left) == (0, {("other",)})
    assert {needed(method, path) for method, path, *_ in server.asked} == of_file("release")


@pytest.mark.parametrize("lives", [True, False])
async def test_the_last_job_leaves_what_another_release_serves(
    monkeypatch: pytest.MonkeyPatch, *, lives: bool
) -> None:
    """Law: the job of a release that only stands by removes no finalizers of the acting release;
    an abandoned Lease does not count.
    """
    server, renewals, began = ObjectServer(), itertools.count(), datetime.now(UTC)
    monkeypatch.setattr(election, "_WAIT_S", 0.01)
    server.put(TOPICS, custom("Topic", "held", finalizers=[FINALIZER]))

    async def renew() -> None:
        renewed = began + timedelta(seconds=next(renewals) if lives else 0)
        spec = {"holderIdentity": "a", "renewTime": renewed.isoformat()}
        notes = {ANNOTATION_SERVES: NAMESPACE}
        meta = {"name": election.NAME, "namespace": "elsewhere", "annotations": notes}
        server.put(LEASES, {"metadata": meta, "spec": {**spec, "leaseDurationSeconds": 0.1}})

    await renew()
    server.slow = renew
    async with server.serving() as api:
        code = await release(api, parse(["--watch-namespaces", "*"]))

    topic = server.find(TOPICS, NAMESPACE, "held")
    assert topic is not None
    assert (code, topic["metadata"]["finalizers"]) == (0, [FINALIZER] if lives else [])


async def test_the_last_job_that_may_not_see_other_releases_lets_nothing_go() -> None:
    """Law: if the job may not see other releases' Leases it removes nothing and fails, which helm shows."""
    server = ObjectServer()
    server.refused[LEASES.path()] = (403, "not granted")
    server.put(TOPICS, custom("Topic", "held", finalizers=[FINALIZER]))
    async with server.serving() as api:
        assert await release(api, parse(["--watch-namespaces", "*"])) == 1
    topic = server.find(TOPICS, NAMESPACE, "held")
    assert topic is not None
    assert topic["metadata"]["finalizers"] == [FINALIZER]


async def test_the_last_job_lets_go_what_changes_while_it_is_read() -> None:
    """Law: the job removes a finalizer even if the object changes while it is read."""
    server, changes = ObjectServer(), [2]
    made = custom("Topic", "held", finalizers=[FINALIZER])
    server.put(TOPICS, made)

    async def change() -> None:
        if changes[0]:
            changes[0] -= 1
            server.put(TOPICS, made)

    server.slow = change
    async with server.serving() as api:
        assert await release_everything(api, ()) == 1
        assert (server.find(TOPICS, NAMESPACE, "held") or {})["metadata"]["finalizers"] == []


async def test_the_last_job_fails_where_an_object_keeps_its_finalizer() -> None:
    """Law: if one object keeps its finalizer, the job removes the others and fails, so Kubernetes tries it again."""
    server = ObjectServer()
    for name in ("kept", "let"):
        server.put(TOPICS, custom("Topic", name, finalizers=[FINALIZER]))
    server.refused[TOPICS.path(NAMESPACE, "kept")] = (422, "spec.queues: Invalid value")
    async with server.serving() as api:
        with pytest.raises(RetryLaterError, match="1 Topic kept the finalizer"):
            await release_everything(api, ())
    assert (server.find(TOPICS, NAMESPACE, "let") or {})["metadata"]["finalizers"] == []


async def test_a_namespace_that_lost_its_role_lets_every_part_go() -> None:
    """Law: finalizers can be removed in a namespace whose Role is already deleted; that right is not in that Role."""
    server, metrics = ObjectServer(), OperatorMetrics()
    server.rights = of_file("cluster")
    leaving: dict[str, Any] = {
        "finalizers": [FINALIZER],
        "deletionTimestamp": "2026-01-01T00:00:00Z",
    }
    for resource in PARTS:
        server.put(resource, custom(resource.kind, "held", **leaving))

    async with server.serving() as api:
        inventory = Inventory(api, (NAMESPACE,))
        access = Credentials(api, lambda: 1)
        defaults = Defaults(IMAGE, "IfNotPresent")
        reconciler = ClusterReconciler(
            api, inventory, defaults, metrics, access=access, zone_of=lambda _: ""
        )
        await reconciler.reconcile((NAMESPACE, "demo"))
        await reconciler.close()

    assert [each["metadata"]["finalizers"] for each in server.objects.values()] == [[]] * 3


async def test_what_is_deleted_waits_for_a_cluster_that_cannot_be_carried_out_only_for_a_time() -> (
    None
):
    """Law: a deleted object waits only for a limited time for a Cluster that cannot be carried out.

    A User's account is the exception.
    """
    server, metrics, now = ObjectServer(), OperatorMetrics(), [0.0]
    server.put(CLUSTERS, custom("Cluster", "demo", spec={"groups": 0}))
    for resource, spec in (
        (TOPICS, {"deletionPolicy": "Delete"}),
        (USERS, {"secretFrom": {"secret": {"name": "s"}}}),
    ):
        leaving: dict[str, Any] = {"deletionTimestamp": "2026-01-01T00:00:00Z", "spec": spec}
        server.put(resource, custom(resource.kind, "held", finalizers=[FINALIZER], **leaving))

    async with server.serving() as api:
        inventory = Inventory(api, (NAMESPACE,))
        access = Credentials(api, lambda: 1)
        defaults = Defaults(IMAGE, "IfNotPresent")
        reconciler = ClusterReconciler(
            api, inventory, defaults, metrics, access, lambda _: "", lambda: now[0]
        )
        pause_s = await reconciler.reconcile((NAMESPACE, "demo"))
        now[0] += GIVE_UP_S + 1
        before = server.find(TOPICS, NAMESPACE, "held")
        await reconciler.reconcile((NAMESPACE, "demo"))
        await reconciler.close()

    topic, user = (server.find(each, NAMESPACE, "held") for each in (TOPICS, USERS))
    assert pause_s == GIVE_UP_S, "it is looked at again"
    assert before is not None
    assert before["metadata"]["finalizers"] == [FINALIZER]
    assert topic is not None
    assert topic["metadata"]["finalizers"] == []
    assert user is not None
    assert user["metadata"]["finalizers"] == [FINALIZER]


async def test_the_last_job_succeeds_where_the_definitions_have_gone_before() -> None:
    """Law: the job succeeds even if the custom resource definitions were deleted before."""
    server = ObjectServer()
    server.put(USERS, custom("User", "held", finalizers=[FINALIZER]))
    server.refused[TOPICS.path()] = (404, "404 page not found")
    async with server.serving() as api:
        assert await release_everything(api, ()) == 1


async def test_a_namespace_that_cannot_be_read_keeps_no_other_from_letting_go() -> None:
    """Law: a namespace that cannot be read (it is gone) does not prevent the others from letting go."""
    server = ObjectServer()
    server.refused["/apis/orderlymq.io/v1alpha1/namespaces/gone"] = (403, "not granted")
    server.put(PARTS[0], custom(PARTS[0].kind, "held", finalizers=[FINALIZER]))
    async with server.serving() as api:
        assert await release_everything(api, ("gone", NAMESPACE)) == 1


@pytest.mark.parametrize(
    ("topics", "refusal", "before", "after"),
    [
        ({}, "", [], [FINALIZER]),
        ({}, "ResourceConflict", [], []),
        ({}, "ResourceConflict", [FINALIZER], [FINALIZER]),
        ({}, "Conflict", [FINALIZER], []),
        (None, "", [], []),
        (None, "", [FINALIZER], [FINALIZER]),
    ],
)
async def test_only_what_is_accepted_is_held(
    topics: dict[str, TopicConfig] | None, refusal: str, before: list[str], after: list[str]
) -> None:
    """Law: only an accepted object gets the finalizer. A refused Topic goes without a request; silent brokers leave it open.

    An object that was accepted once keeps the finalizer, even if the brokers have changed since.
    """
    server = ObjectServer()
    found = server.put(
        TOPICS, custom("Topic", "orders", spec={"deletionPolicy": "Delete"}, finalizers=before)
    )
    state = desired_state(cluster(), [read_item(TOPICS, found)])
    if refusal:
        report = ConditionReport("False", refusal, "it is not ordered")
        state.verdicts = dict.fromkeys(state.subjects, report)
    observed = Observed(groups={"demo-0": ObservedGroup(1, {}, topics)})

    async with server.serving() as api:
        await Finalizers(api, Inventory(api, (NAMESPACE,))).settle(state, observed)

    held = server.find(TOPICS, NAMESPACE, "orders")
    assert held is not None
    assert held["metadata"]["finalizers"] == after


@pytest.mark.parametrize("is_gone", [False, True])
async def test_what_has_changed_since_it_was_read_is_held_before_it_is_made(is_gone: bool) -> None:
    """Law: an object gets its finalizer before any broker gets what it declares, even if it has changed since it was read."""
    server = ObjectServer()
    made = custom("Topic", "orders", spec={"deletionPolicy": "Delete"})
    state = desired_state(cluster(), [read_item(TOPICS, server.put(TOPICS, made))])
    if is_gone:
        server.drop(TOPICS, NAMESPACE, "orders")
    else:
        server.put(TOPICS, made)
    observed = Observed(groups={"demo-0": ObservedGroup(1, {}, {})})

    async with server.serving() as api:
        left_out = await Finalizers(api, Inventory(api, (NAMESPACE,))).settle(state, observed)

    assert left_out == state.subjects.keys()
    assert state.verdicts == {}


@pytest.mark.parametrize(
    ("kind", "spec", "name"),
    [
        ("User", {}, "departed"),
        ("User", {"accessKey": "billing-app"}, "billing-app"),
        ("Topic", {"deletionPolicy": "Delete"}, None),
    ],
)
async def test_the_account_of_a_user_that_cannot_be_read_is_deleted_with_it(
    kind: str, spec: dict[str, Any], name: str | None
) -> None:
    """Law: a deleted User's account is deleted even if its spec cannot be read (another version); nothing else is guessed."""
    resource = {each.kind: each for each in PARTS}[kind]
    leaving: dict[str, Any] = {
        "finalizers": [FINALIZER],
        "deletionTimestamp": "2026-01-01T00:00:00Z",
    }
    server = ObjectServer()
    made = custom(kind, "departed", spec={**spec, "ofTomorrow": 1}, **leaving)
    state = desired_state(cluster(), [read_item(resource, server.put(resource, made))])
    wanted = {name} - {None}
    there = dict.fromkeys(("departed", "billing-app"))
    tables: dict[str, Any] = there
    path, held = resource.path(NAMESPACE, "departed"), []

    async with server.serving() as api:
        finalizers = Finalizers(api, Inventory(api, (NAMESPACE,)))
        for known in (tables, {}):
            observed = Observed(groups={"demo-0": ObservedGroup(1, {}, known, known, known)})
            await finalizers.finish(state, observed)
            held.append(bool(server.objects[path]["metadata"]["finalizers"]))

    assert state.desired.deleted_users == wanted
    assert not state.desired.deleted_topics
    assert held == [name is not None, False]


async def test_a_topic_stays_while_a_name_server_that_may_have_its_list_is_silent() -> None:
    """Law: a Topic waits while a name server that may have its queue list is silent;
    otherwise the list would come back later.
    """
    server = ObjectServer()
    leaving: dict[str, Any] = {
        "finalizers": [FINALIZER],
        "deletionTimestamp": "2026-01-01T00:00:00Z",
    }
    made = custom("Topic", "departed", spec={"deletionPolicy": "Delete"}, **leaving)
    state = desired_state(cluster(), [read_item(TOPICS, server.put(TOPICS, made))])
    groups = {"demo-0": ObservedGroup(1, {}, {}, {}, {})}
    held = []
    async with server.serving() as api:
        finalizers = Finalizers(api, Inventory(api, (NAMESPACE,)))
        for lists in (None, {"departed": "demo-0:8"}, {}):
            servers = {0: ObservedNameServer({}), 1: ObservedNameServer(lists)}
            await finalizers.finish(state, Observed(name_servers=servers, groups=groups))
            found = server.find(TOPICS, NAMESPACE, "departed")
            held.append(found is not None and found["metadata"]["finalizers"] == [FINALIZER])

    assert held == [True, True, False]


SILENT = Observed(groups={"demo-0": ObservedGroup()})
THERE: dict[str, Any] = {"departed": None}
MADE_AGAIN = Observed(groups={"demo-0": ObservedGroup(1, {}, THERE, THERE, THERE)})


@pytest.mark.parametrize("observed", [SILENT, MADE_AGAIN], ids=["silent", "made again"])
@pytest.mark.parametrize(
    ("kind", "refusal", "is_held"),
    [
        ("Topic", "", False),
        ("User", "", True),
        ("User", "exceeded quota: events", True),
        ("User", 'events is forbidden: cannot create resource "events"', False),
        ("User", "terminating", False),
    ],
)
async def test_what_does_not_go_is_waited_for_as_long_as_it_is_safe(
    kind: str, refusal: str, is_held: bool, observed: Observed
) -> None:
    """Law: waiting ends after a time if that is safe. It never leaves a deleted User's account valid, nor deletes a topic that clients make again.

    The time counts from when this operator first saw the object wait, not from the deletion.
    """
    resource = {each.kind: each for each in PARTS}[kind]
    server, now = ObjectServer(), [0.0]
    spec: dict[str, Any] = {"deletionPolicy": "Delete"}
    if kind == "User":
        spec = {"secretFrom": {"secret": {"name": "s"}}}
    leaving: dict[str, Any] = {
        "finalizers": [FINALIZER],
        "deletionTimestamp": "2026-01-01T00:00:00Z",
    }
    path = resource.path(NAMESPACE, "departed")
    item = read_item(resource, server.put(resource, custom(kind, "departed", spec=spec, **leaving)))
    state = desired_state(cluster(), [item])
    server.terminating = refusal == "terminating"
    if refusal and not server.terminating:
        server.refused[EVENTS.path(NAMESPACE)] = (403, refusal)

    held = []
    async with server.serving() as api:
        finalizers = Finalizers(api, Inventory(api, (NAMESPACE,)), lambda: now[0])
        for _ in range(3):
            await finalizers.finish(state, observed)
            now[0] += GIVE_UP_S / 2 + 1
            held.append(server.objects[path]["metadata"]["finalizers"] == [FINALIZER])

    assert held == [True, True, is_held]
    assert [path for path in server.objects if "/events/" in path] == []


async def test_the_time_of_what_waits_goes_on_when_a_pass_may_change_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Law: the waiting time goes on during a pass that may change nothing;
    the full pass after it finds that the time is over.
    """
    server, now = ObjectServer(), [0.0]
    leaving: dict[str, Any] = {
        "spec": {"deletionPolicy": "Delete"},
        "finalizers": [FINALIZER],
        "deletionTimestamp": "2026-01-01T00:00:00Z",
    }
    found = server.put(TOPICS, custom("Topic", "departed", **leaving))
    state = desired_state(cluster(), [read_item(TOPICS, found)])

    async with server.serving() as api:
        finalizers = Finalizers(api, Inventory(api, (NAMESPACE,)), lambda: now[0])
        await finalizers.finish(state, SILENT)
        now[0] += GIVE_UP_S + 1
        with deciding_from_cache(), pytest.raises(NotReadError):
            await finalizers.finish(state, SILENT)
        assert not caplog.messages, "no finalizer is removed yet"
        await finalizers.finish(state, SILENT)

    held = server.find(TOPICS, NAMESPACE, "departed")
    assert held is not None
    assert held["metadata"]["finalizers"] == []


@pytest.mark.parametrize("leaving", [False, True])
async def test_finalizers_of_many_objects_are_written_some_at_a_time(leaving: bool) -> None:
    """Law: finalizers are written some at a time; thousands of Topics delay their Cluster by seconds and leave
    connections to others.
    """
    server, under_way, most = ObjectServer(), 0, 0
    times: dict[str, Any] = {"deletionTimestamp": "2026-01-01T00:00:00Z"} if leaving else {}
    held = [FINALIZER] if leaving else []
    spec = {"deletionPolicy": "Delete"}
    items = [
        read_item(TOPICS, server.put(TOPICS, custom("Topic", f"t-{number}", **given)))
        for number in range(40)
        for given in ({"spec": spec, "finalizers": held, **times},)
    ]

    async def answer(request: web.Request) -> web.Response:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        for _ in range(20):
            await asyncio.sleep(0)
        under_way -= 1
        return web.json_response(server.find(TOPICS, NAMESPACE, request.match_info["name"]))

    state = desired_state(cluster(), items)
    observed = Observed(
        groups={"demo-0": ObservedGroup(1, {}, {})},
        name_servers={index: ObservedNameServer({}) for index in range(3)},
    )
    path = TOPICS.path(NAMESPACE, "{name}")
    async with serving_api(web.patch(path, answer)) as api:
        finalizers = Finalizers(api, Inventory(api, (NAMESPACE,)))
        if leaving:
            await finalizers.finish(state, observed)
        else:
            assert await finalizers.settle(state, observed) == set()

    assert 1 < most <= 8


async def test_a_cluster_that_is_made_again_waits_for_no_report_that_there_is_none() -> None:
    """Law: a Cluster made again under its name is reconciled as soon as the former one's reconcile has ended."""
    server, metrics = ObjectServer(), OperatorMetrics()
    for number in range(40):
        server.put(TOPICS, custom("Topic", f"t-{number}", spec={}))

    async with server.serving() as api:
        inventory = Inventory(api, (NAMESPACE,))
        reconciler = ClusterReconciler(
            api,
            inventory,
            Defaults(IMAGE, "IfNotPresent"),
            metrics,
            Credentials(api, lambda: 1),
            str,
        )
        await inventory.refresh((NAMESPACE, "demo"))
        reconcile = asyncio.create_task(reconciler.reconcile((NAMESPACE, "demo")))
        for _ in range(10_000):
            if server.writes():
                break
            await asyncio.sleep(0)
        made = {**server.put(CLUSTERS, custom("Cluster", "demo", spec={})), "kind": "Cluster"}
        inventory.shown(CLUSTERS, made, gone=False)
        await reconcile
        await reconciler.close()

    assert 0 < sum(bool(found.get("status")) for found in server.objects.values()) < 40
