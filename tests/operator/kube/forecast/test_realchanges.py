"""
The forecast and an operator at a real API server: over random changes only what was forecast happens.

Actions are recorded where they leave the operator, as requests to the API server, and where they arrive, in brokers
and name servers. ORDERLYMQ_CHANGES is the number of changes, ORDERLYMQ_SEED the first seed.
"""

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp
import pytest
import yaml
from bench.apiload import ADMIN, NAMESPACE, OPERATOR
from kubernetes.aio.client import ApiClient, Configuration

from orderlymq_operator.brokers.admin import AdminError
from orderlymq_operator.kube.api import Api
from orderlymq_operator.kube.errors import ApiError
from orderlymq_operator.kube.forecast.reader import forecast_with
from orderlymq_operator.kube.metrics import OperatorMetrics
from orderlymq_operator.kube.observe.credentials import Credentials
from orderlymq_operator.kube.observe.inventory import Inventory
from orderlymq_operator.kube.reconcile.backend import Defaults
from orderlymq_operator.kube.reconcile.cluster import ClusterReconciler
from orderlymq_operator.kube.resources import CLAIMS, MADE, OWN_KINDS, PODS, Json, resource_of
from orderlymq_operator.plan.forecast.effects import Forecast
from orderlymq_operator.resources.manifests.problems import ManifestError
from orderlymq_operator.resources.manifests.reader import parse
from tests.operator.kube.fakes.brokers import Brokers, serving
from tests.operator.kube.fakes.changes import BEGINNING, Name, change
from tests.operator.kube.fakes.kubernetes import Controllers
from tests.operator.kube.realapi import administrator, needs_api_server, real_api_server
from tests.operator.kube.samples import IMAGE
from tests.operator.plan.forecast.foretold import Fact, allows

_log = logging.getLogger(__name__)

pytestmark = [pytest.mark.long, pytest.mark.timeout(3_600), needs_api_server]

KEY: Final = (NAMESPACE, "demo")
CHANGES: Final = int(os.environ.get("ORDERLYMQ_CHANGES", "25"))
SEED: Final = int(os.environ.get("ORDERLYMQ_SEED", "1"))
_PASSES_MAX: Final = 400
_QUIET: Final = 3
_KINDS: Final = {each.plural: each.kind for each in (*MADE, *OWN_KINDS, PODS, CLAIMS)}
_CONFIRM: Final = "orderlymq.io/confirm"


class Recorder(ApiClient):
    """The operator's connection; it records the requests that change something."""

    def __init__(self, configuration: Configuration) -> None:
        super().__init__(configuration=configuration)
        self.written: list[str] = []

    async def call_api(self, method: str, url: str, *given: Any, **more: Any) -> Any:
        parts = urlsplit(url)
        place = parts.path.removesuffix("/eviction")
        # A finalizer comes and goes with a deletionPolicy; it is a note like a status.
        is_note = list((more.get("body") or {}).get("metadata") or {})[:1] == ["finalizers"]
        if method != "GET" and not is_note and not place.endswith(("/status", "/events")):
            plural, name = place.split("/")[-2:]
            if method == "POST" and plural != "pods":
                plural, name = name, more["body"]["metadata"]["name"]
            self.written.append(f"{_KINDS.get(plural, plural)}/{name}")
        return await super().call_api(method, url, *given, **more)


@dataclass
class World:
    """A Cluster, its operator, and all that they need.

    Attributes:
        manifests: the specs that the API server accepted, by kind and name.
        notes: annotations of the Cluster.
    """

    api: Api
    recorder: Recorder
    reconciler: ClusterReconciler
    controllers: Controllers
    brokers: Brokers
    people: aiohttp.ClientSession
    address: str
    manifests: dict[Name, Json] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    happened: set[Fact] = field(default_factory=set)

    async def apply(self, name: Name, spec: Json) -> str:
        """Apply a manifest as kubectl does; return the refusal, empty if there is none."""
        made = manifest(name, spec, self.notes)
        path = resource_of(made).path(NAMESPACE, name[1])
        query = {"fieldManager": "kubectl", "fieldValidation": "Strict"}
        headers = {"Authorization": f"Bearer {ADMIN}"}
        headers["Content-Type"] = "application/apply-patch+yaml"
        async with self.people.patch(
            self.address + path, params=query, headers=headers, data=json.dumps(made)
        ) as answer:
            if answer.status >= 400:
                return str((await answer.json())["message"])
        self.manifests[name] = spec
        return ""

    async def delete(self, name: Name) -> None:
        """Delete an object as kubectl does."""
        path = resource_of(manifest(name, {}, {})).path(NAMESPACE, name[1])
        headers = {"Authorization": f"Bearer {ADMIN}"}
        async with self.people.delete(self.address + path, headers=headers) as answer:
            assert answer.status == 200, await answer.text()
        del self.manifests[name]

    async def forecast(self, changed: dict[Name, Json]) -> Forecast:
        """Return the forecast.

        Raises:
            ManifestError: it cannot be read.
        """
        found = [manifest(name, spec, self.notes) for name, spec in changed.items()]
        return await forecast_with(
            self.api, parse(yaml.safe_dump_all(found), "new.yaml"), NAMESPACE
        )

    async def settle(self) -> list[str]:
        """Let the operator work until nothing more happens; return what it wrote."""
        self.recorder.written.clear()
        self.controllers.restarted.clear()
        self.happened.clear()
        before, quiet = self.brokers.facts(), 0
        for _ in range(_PASSES_MAX):
            moved = await self.controllers.work()
            count = len(self.recorder.written)
            self.reconciler.inventory.invalidate()
            self.reconciler.interrupted(_KINDS.values())
            try:
                await self.reconciler.reconcile(KEY)
            except (ApiError, AdminError):
                moved = True
            after = self.brokers.facts()
            changed = {
                fact for fact in before.keys() | after.keys() if before.get(fact) != after.get(fact)
            }
            self.happened |= changed
            still = not moved and not changed and count == len(self.recorder.written)
            before, quiet = after, quiet + 1 if still else 0
            if quiet == _QUIET:
                return list(self.recorder.written)
            if still:
                await asyncio.sleep(0.05)
        raise AssertionError(f"no end: {self.recorder.written[-20:]}")


def manifest(name: Name, spec: Json, notes: dict[str, str]) -> Json:
    kind, called = name
    meta: Json = {"name": called, "namespace": NAMESPACE}
    if kind == "Cluster" and notes:
        meta["annotations"] = notes
    return {"apiVersion": "orderlymq.io/v1alpha1", "kind": kind, "metadata": meta, "spec": spec}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with real_api_server(tmp_path_factory.mktemp("api")) as found:
        yield found


@asynccontextmanager
async def world(address: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    """Let a Cluster run."""
    settings = Configuration(host=address)
    settings.verify_ssl = False
    settings.api_key = {"BearerToken": OPERATOR}
    settings.api_key_prefix = {"BearerToken": "Bearer"}
    brokers, recorder = Brokers(), Recorder(settings)
    people = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=False))
    async with (
        Api(recorder, OperatorMetrics()) as api,
        administrator(address) as kube,
        serving(brokers, monkeypatch.setattr),
        people,
    ):
        controllers = Controllers(kube, brokers)
        await controllers.begin()
        metrics = OperatorMetrics()
        reconciler = ClusterReconciler(
            api,
            Inventory(api, (NAMESPACE,)),
            Defaults(IMAGE, "IfNotPresent", NAMESPACE),
            metrics,
            Credentials(api, lambda: 1),
            zone_of=lambda _: "",
        )
        found = World(api, recorder, reconciler, controllers, brokers, people, address)
        assert not await found.apply(("Cluster", "demo"), BEGINNING)
        await found.settle()
        yield found
        await reconciler.close()


async def test_over_random_changes_nothing_happens_that_was_not_said(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: each refusal, write and broker request was in the plan; afterwards the plan is empty."""
    troubles = []
    async with world(address, monkeypatch) as now:
        for seed in range(SEED, SEED + CHANGES):
            changed = change(now.manifests, Random(seed))
            _log.info("seed %d: %s", seed, changed)
            try:
                await _try(now, changed)
            except AssertionError as error:
                troubles.append(f"seed {seed}: {changed}\n{error}")
                _log.warning("%s", troubles[-1])
    assert not troubles, "\n\n".join(troubles)


async def _try(now: World, changed: dict[Name, Json]) -> None:
    said = await _said(now, changed)
    if said is None:
        answers = {name: await now.apply(name, spec) for name, spec in changed.items()}
        assert any(answers.values()), "the API server takes what no manifest may say"
        await now.settle()
        return
    refused_names = {(each.kind, each.name.rpartition("/")[2]) for each in said.refusals}
    answers = {name: await now.apply(name, spec) for name, spec in changed.items()}
    assert {name for name, why in answers.items() if why} == refused_names, (answers, said)
    written = await now.settle()
    unsaid(now, said, written)
    tokens = said.targets("NeedsConfirmation")
    if tokens:
        now.notes[_CONFIRM] = ",".join(tokens)
        assert not await now.apply(("Cluster", "demo"), now.manifests["Cluster", "demo"])
        unsaid(now, said, await now.settle())
    later = await now.forecast(now.manifests)
    left = [each for each in later.effects if each.kind != "Waits"]
    assert not left or any(each.kind == "Waits" for each in later.effects), (
        f"at rest: {left}, {_told(now)}"
    )


async def _said(now: World, changed: dict[Name, Json]) -> Forecast | None:
    """Return the plan; None if it says that a manifest cannot be used."""
    try:
        return await now.forecast(changed)
    except ManifestError:
        return None


def unsaid(now: World, said: Forecast, written: list[str]) -> None:
    """Fail for each action that was not forecast."""
    scope = now.reconciler.seen[KEY]
    facts = {fact for fact in now.happened if not _may(said, scope.state.desired, fact)}
    assert not facts, (facts, said)
    targets = {target for effect in said.effects for target in effect.targets}
    targets |= {
        f"{each.subject.kind}/{each.subject.name.rpartition('/')[2]}"
        for each in said.resources
        if each.effects
    }
    places = set(said.targets("Adds")) | set(said.targets("Removes"))
    wrote = {
        each
        for each in written
        if each not in targets
        and not each.startswith(("Secret/", "secrets/", "Pod/"))
        and not any(place.partition("/")[0] in each for place in places)
    }
    assert not wrote, (wrote, said)
    restarted = {_process(pod) for pod in now.controllers.restarted}
    told = set(said.targets("Restarts"))
    assert restarted <= told, (restarted - told, said)


def _told(now: World) -> list[Json]:
    """Return what the Cluster reports as wrong."""
    item = now.reconciler.inventory.cluster(KEY)
    assert item is not None
    return [each for each in item.status["conditions"] if each["status"] != "True"]


def _may(said: Forecast, desired: Any, fact: Fact) -> bool:
    kind, group, _ = fact
    if kind in ("lead", "writable") and group in said.targets("Adds"):
        return (
            True  # Its volumes may have outlived it; it comes back as it was and is opened again.
        )
    if kind == "writable":
        return group in said.targets("Removes")
    return allows(said, desired, fact)


def _process(pod: str) -> str:
    """Return a pod as forecasts name it."""
    owner, _, number = pod.rpartition("-")
    return f"nameserver/{number}" if owner == "demo-nameserver" else f"{owner}/{int(number) + 1}"
