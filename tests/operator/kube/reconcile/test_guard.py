"""An edit that waits for its confirmation or for the end of a pause: the Cluster stays as it was, and Ready."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import yaml

from orderlymq_operator.kube.forecast.reader import forecast_with
from orderlymq_operator.kube.objects import names
from orderlymq_operator.kube.objects.pods import settings_file
from orderlymq_operator.kube.resources import CLUSTERS, CONFIG_MAPS, STATEFUL_SETS
from orderlymq_operator.plan.guard import ANNOTATION_CONFIRM
from orderlymq_operator.resources.manifests.reader import parse
from tests.operator.kube.samples import NAMESPACE
from tests.operator.kube.smallcluster import KEY, SmallCluster, small_cluster

_SHORT = {"retention": {"time": "1h"}, "config": {"logLevel": "DEBUG"}}


@pytest.fixture
async def small(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SmallCluster]:
    async with small_cluster(monkeypatch.setattr) as found:
        await _settle(found)
        yield found


async def _settle(small: SmallCluster) -> list[tuple[str, ...]]:
    """Reconcile several times; return the writes other than statuses."""
    small.server.writes()
    for _ in range(3):
        await small.reconciler.reconcile(KEY)
    return [each for each in small.server.writes() if not each[1].endswith("/status")]


def _retention(small: SmallCluster) -> str:
    found = small.server.find(CONFIG_MAPS, NAMESPACE, "demo-0")
    assert found is not None
    template = small.server.find(STATEFUL_SETS, NAMESPACE, "demo-0") or {}
    form = template["spec"]["template"]["metadata"]["annotations"][names.ANNOTATION_SETTINGS]
    lines: list[str] = found["data"][settings_file("demo-0-0", form)].splitlines()
    return next(line for line in lines if '"retention_ms"' in line).strip(" ,")


def _token(small: SmallCluster) -> str:
    message = str(small.condition("Confirmed")["message"])
    return message.partition("orderlymq.io/confirm=")[2].partition(";")[0]


async def test_a_dangerous_edit_changes_nothing_until_it_is_confirmed(small: SmallCluster) -> None:
    """Law: a dangerous edit changes nothing (not even its harmless parts) until it is confirmed;
    the condition names the annotation.
    """
    small.change(**_SHORT)

    early = await _settle(small)
    said = small.condition("Confirmed")
    small.annotate(confirm=_token(small))
    late = await _settle(small)

    assert early == []
    assert (said["status"], said["reason"]) == ("False", "ConfirmationMissing")
    assert said["message"].startswith(
        "ShortenRetention: messages that are older than 1h are deleted"
    )
    assert ("POST", f"/api/v1/namespaces/{NAMESPACE}/pods/demo-0-0/eviction") in late
    assert _retention(small) == '"retention_ms": 3600000'


async def test_an_old_confirmation_does_not_serve_a_new_edit(small: SmallCluster) -> None:
    """Law: a confirmation serves one edit; the same edit, made again later, must be confirmed again."""
    small.change(**_SHORT)
    await _settle(small)
    token = _token(small)
    small.annotate(confirm=token)
    await _settle(small)
    small.change(retention={"time": "72h"})
    await _settle(small)

    small.change(retention={"time": "1h"})
    written = await _settle(small)

    assert written == []
    assert small.condition("Confirmed")["reason"] == "ConfirmationMissing"
    assert _token(small) != token
    assert _retention(small) == '"retention_ms": 259200000'


def _rewrite(small: SmallCluster, name: str, note: str | None) -> None:
    """Give a StatefulSet another note of the accepted spec; None deletes the whole object."""
    found = small.server.find(STATEFUL_SETS, NAMESPACE, name)
    assert found is not None
    if note is None:
        small.server.drop(STATEFUL_SETS, NAMESPACE, name)
        small.shown(STATEFUL_SETS, found, gone=True)
    else:
        notes = {**found["metadata"]["annotations"], names.ANNOTATION_ACCEPTED: note}
        made = {**found, "metadata": {**found["metadata"], "annotations": notes}}
        small.shown(STATEFUL_SETS, small.server.put(STATEFUL_SETS, made), gone=False)
    small.reconciler.inventory.invalidate()


@pytest.mark.parametrize(
    "lost", [{"demo-nameserver": None}, {"demo-nameserver": "{"}, {"demo-0": None}]
)
@pytest.mark.parametrize("paused", [False, True])
async def test_an_edit_goes_on_waiting_when_one_note_of_the_spec_before_is_lost(
    small: SmallCluster, lost: dict[str, str | None], paused: bool
) -> None:
    """Law: an edit still waits if one note of the accepted spec is lost; each StatefulSet has the note, and one is enough."""
    if paused:
        small.annotate(pause="true")
    small.change(**_SHORT)
    await _settle(small)

    for name, note in lost.items():
        _rewrite(small, name, note)
    written = await _settle(small)

    assert not any(path.endswith("/eviction") for _, path in written)
    assert bool(written) != paused
    assert small.condition("Confirmed")["reason"] == "ConfirmationMissing"
    servers = small.server.find(STATEFUL_SETS, NAMESPACE, "demo-nameserver")
    assert paused or (servers and servers["metadata"]["annotations"][names.ANNOTATION_ACCEPTED])
    if "demo-0" not in lost:
        assert _retention(small) == '"retention_ms": 259200000'


async def test_the_note_of_an_operator_that_knows_more_fields_is_read(small: SmallCluster) -> None:
    """Law: a note with unknown fields, from a newer operator, is read; a rollback of the operator confirms no edit."""
    small.change(**_SHORT)
    await _settle(small)

    for name in ("demo-nameserver", "demo-0"):
        found = small.server.find(STATEFUL_SETS, NAMESPACE, name) or {}
        said = json.loads(found["metadata"]["annotations"][names.ANNOTATION_ACCEPTED])
        _rewrite(small, name, json.dumps(said | {"config": {"ofANewerVersion": True}}))
    written = await _settle(small)

    assert not any(path.endswith("/eviction") for _, path in written)
    assert _token(small).startswith("ShortenRetention.")
    assert _retention(small) == '"retention_ms": 259200000'


async def test_nothing_is_carried_out_while_nobody_knows_the_spec_before(
    small: SmallCluster,
) -> None:
    """Law: if all notes of a running Cluster are lost, nothing is changed until the manifest is confirmed."""
    small.change(**_SHORT)
    await _settle(small)
    for name in ("demo-nameserver", "demo-0"):
        _rewrite(small, name, '{"replicasPerGroup": "as many as there were"}')

    early = await _settle(small)
    ready, said = small.condition("Ready"), small.condition("Confirmed")
    small.annotate(confirm=_token(small))
    late = await _settle(small)

    assert [path for _, path in early if not path.endswith("/events")] == []
    assert (ready["status"], ready["reason"]) == ("False", "ConfirmationMissing")
    assert said["message"].startswith("CarryOut: no StatefulSet records which spec")
    assert ("POST", f"/api/v1/namespaces/{NAMESPACE}/pods/demo-0-0/eviction") in late
    assert _retention(small) == '"retention_ms": 3600000'
    assert small.condition("Confirmed")["status"] == "True"


async def test_the_plan_names_the_annotation_before_the_edit_is_made(small: SmallCluster) -> None:
    """Law: the plan names the annotation before the edit is made, so both can be applied together."""
    meta: dict[str, Any] = {"name": "demo", "namespace": NAMESPACE}
    spec: dict[str, Any] = {
        "replicasPerGroup": 1,
        "nameServers": {"replicas": 1},
        "security": {"internalTls": "Disabled"},
        **_SHORT,
    }
    made = {"apiVersion": "orderlymq.io/v1alpha1", "kind": "Cluster", "metadata": meta}
    async with small.server.serving() as api:
        manifests = parse(yaml.safe_dump({**made, "spec": spec}), "new.yaml")
        (planned,) = (await forecast_with(api, manifests, NAMESPACE)).targets("NeedsConfirmation")
        meta["annotations"] = {ANNOTATION_CONFIRM: planned}
        manifests = parse(yaml.safe_dump({**made, "spec": spec}), "new.yaml")
        confirmed = await forecast_with(api, manifests, NAMESPACE)

    small.change(**_SHORT)
    await _settle(small)

    assert planned == _token(small)
    assert not confirmed.targets("NeedsConfirmation")
    assert confirmed.targets("Restarts") == ("nameserver/0", "demo-0/1")


async def test_a_paused_cluster_is_ready_whatever_is_wanted_of_it(small: SmallCluster) -> None:
    """Law: a paused Cluster is Ready whatever its spec wants; the edit is carried out after the pause."""
    small.annotate(pause="true")
    small.change(groups=2, config={"logLevel": "DEBUG"}, nameServers={"replicas": 2})

    written = await _settle(small)

    assert written == []
    assert small.condition("Paused")["status"] == "True"
    assert small.condition("Ready")["status"] == "True"
    small.annotate()
    assert ("POST", f"/api/v1/namespaces/{NAMESPACE}/pods/demo-0-0/eviction") in await _settle(
        small
    )


async def test_a_spec_that_cannot_be_used_leaves_the_cluster_what_it_was(
    small: SmallCluster,
) -> None:
    """Law: with an unusable spec the Cluster is kept by the previous spec and the condition names the field;
    a correction goes on.
    """
    before = small.server.find(CLUSTERS, *KEY) or {}
    small.change(config={"registerNameServerPeriod": "5s", "logLevel": "DEBUG"})

    idle = await _settle(small)
    said = small.condition("Ready")
    told = (small.server.find(CLUSTERS, *KEY) or {})["status"]
    small.server.drop(CONFIG_MAPS, NAMESPACE, "demo-0")
    small.reconciler.inventory.invalidate()
    small.reconciler.interrupted({"ConfigMap"})
    repaired = await _settle(small)
    small.change(config={})
    await _settle(small)

    assert idle == [("POST", f"/api/v1/namespaces/{NAMESPACE}/events")]
    assert (said["status"], said["reason"]) == ("False", "Invalid")
    assert "registerNameServerPeriod 5s is not within 10s to 60s" in said["message"]
    assert small.reconciler.seen.targets()
    assert told["groups"] == before["status"]["groups"]
    assert len(told["conditions"]) == len(before["status"]["conditions"])
    assert ("PATCH", f"/api/v1/namespaces/{NAMESPACE}/configmaps/demo-0") in repaired
    assert small.condition("Ready")["status"] == "True"


async def test_a_cluster_that_was_never_usable_is_not_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Law: a Cluster whose first spec is unusable is not made, and costs no lists."""
    async with small_cluster(monkeypatch.setattr) as small:
        small.change(retention={"time": "never"})
        assert await _settle(small) == []
        assert small.condition("Ready")["reason"] == "Invalid"
        assert await small.lists() == (None, 0)
