"""A pod's settings files stay as they were when the pod was made, except live settings, whatever new pods get."""

import json
from collections.abc import Iterable
from typing import Any

import pytest

from orderlymq_operator.kube.objects import names
from orderlymq_operator.kube.objects.listeners import ADDRESSES_FILE
from orderlymq_operator.kube.objects.pods import settings_file
from orderlymq_operator.kube.resources import CONFIG_MAPS, PODS, STATEFUL_SETS, Json
from tests.operator.kube.samples import NAMESPACE
from tests.operator.kube.smallcluster import KEY, SmallCluster, small_cluster

_PLACES = (("demo-0", "demo-0-0", "demo-0-0"), ("demo-nameserver", "demo-nameserver-0", "settings"))


def _made(small: SmallCluster, name: str) -> tuple[Json, Json]:
    """Return the settings files, and the annotations of new pods."""
    config = small.server.find(CONFIG_MAPS, NAMESPACE, name)
    stateful_set = small.server.find(STATEFUL_SETS, NAMESPACE, name)
    assert config is not None
    assert stateful_set is not None
    return config["data"], stateful_set["spec"]["template"]["metadata"]["annotations"]


def _replace(small: SmallCluster, pods: Iterable[str]) -> None:
    """Let pods be made again, as Kubernetes does."""
    for name, pod, _ in _PLACES:
        if pod in pods:
            found = small.server.find(PODS, NAMESPACE, pod)
            assert found is not None
            notes = dict(_made(small, name)[1])
            small.server.put(
                PODS, {**found, "metadata": {**found["metadata"], "annotations": notes}}
            )
    small.reconciler.interrupted(("Pod",))


async def _settle(small: SmallCluster) -> None:
    for _ in range(3):
        await small.reconciler.reconcile(KEY)


@pytest.mark.parametrize("mode", ["Paused", "Automatic"])
@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"config": {"logLevel": "DEBUG"}}, id="settings"),
        pytest.param({"security": {"internalTls": "Enabled"}}, id="certificates"),
    ],
)
async def test_a_pod_of_before_finds_the_settings_that_it_was_made_with(
    monkeypatch: pytest.MonkeyPatch, mode: str, change: dict[str, Any]
) -> None:
    """Law: an older pod's settings files stay unchanged while it exists, and go after it; a new pod has its own."""
    async with small_cluster(monkeypatch.setattr, update={"mode": mode}) as small:
        await _settle(small)
        _replace(small, [pod for _, pod, _ in _PLACES])
        await _settle(small)
        before = {name: _made(small, name) for name, _, _ in _PLACES}
        small.change(**change)
        await _settle(small)

        for name, _, process in _PLACES:
            data, notes = _made(small, name)
            files, own = before[name]
            mine = settings_file(process, own[names.ANNOTATION_SETTINGS])
            assert data[mine] == files[mine]
            assert settings_file(process, notes[names.ANNOTATION_SETTINGS]) in data

        for _ in range(3):  # Certificates come in two steps.
            _replace(small, [pod for _, pod, _ in _PLACES])
            await _settle(small)
        for name, _, process in _PLACES:
            data, notes = _made(small, name)
            assert list(data) == [settings_file(process, notes[names.ANNOTATION_SETTINGS])]


@pytest.mark.parametrize("mode", ["Paused", "Automatic"])
async def test_a_pod_of_before_gets_the_settings_that_brokers_read_again_while_they_run(
    monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """Law: live settings (which brokers read again while they run) reach older pods without a restart;
    keys that an older broker does not know are not added.
    """
    async with small_cluster(monkeypatch.setattr, update={"mode": mode}) as small:
        await _settle(small)
        _replace(small, [pod for _, pod, _ in _PLACES])
        await _settle(small)
        files, own = _made(small, "demo-0")
        mine = settings_file("demo-0-0", own[names.ANNOTATION_SETTINGS])
        former = json.loads(files[mine])
        del former["enable_property_filter"]
        config = small.server.find(CONFIG_MAPS, NAMESPACE, "demo-0")
        assert config is not None
        small.server.put(CONFIG_MAPS, {**config, "data": {mine: json.dumps(former)}})
        small.change(config={"tailCacheSize": "1Mi", "brokerPermission": 4})
        small.reconciler.interrupted(("ConfigMap",))
        await _settle(small)
        small.change(
            config={"tailCacheSize": "1Mi", "brokerPermission": 4}, retention={"time": "168h"}
        )
        await _settle(small)

        assert json.loads(_made(small, "demo-0")[0][mine]) == {
            **former,
            "permission": 4,
            "storage": {**former["storage"], "retention_ms": 168 * 3_600_000},
        }


@pytest.mark.parametrize("mode", ["Paused", "Automatic"])
async def test_a_name_server_of_before_finds_the_addresses_that_its_settings_name(
    monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """Law: the address file that an older name server's settings name stays, even after the last listener has gone."""
    listener = {"name": "out", "type": "LoadBalancer", "port": 9000}
    async with small_cluster(
        monkeypatch.setattr, update={"mode": mode}, listeners=[listener]
    ) as small:
        await _settle(small)
        _replace(small, [pod for _, pod, _ in _PLACES])
        await _settle(small)
        before = _made(small, "demo-nameserver")[0]
        small.change(listeners=[])
        await _settle(small)
        during = _made(small, "demo-nameserver")[0]
        for _ in range(2):
            _replace(small, [pod for _, pod, _ in _PLACES])
            await _settle(small)

        assert during.items() >= before.items()
        assert ADDRESSES_FILE in before
        assert ADDRESSES_FILE not in _made(small, "demo-nameserver")[0]


async def test_a_pod_of_an_earlier_version_keeps_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: a pod of an earlier version keeps its file; a new operator restarts nothing."""
    async with small_cluster(monkeypatch.setattr) as small:
        await _settle(small)
        for name, _, process in _PLACES:
            found = small.server.find(CONFIG_MAPS, NAMESPACE, name)
            assert found is not None
            small.server.put(CONFIG_MAPS, {**found, "data": {f"{process}.json": "{}"}})
        small.reconciler.interrupted(("ConfigMap",))
        await _settle(small)

        for name, _, process in _PLACES:
            assert _made(small, name)[0][f"{process}.json"] == "{}"
            assert len(_made(small, name)[0]) == 2
