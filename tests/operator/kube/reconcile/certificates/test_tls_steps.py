"""The TLS mode of new pods if the Cluster's mode changes faster than its pods restart."""

import json
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from orderlymq_operator.kube.forecast.present import observed_state
from orderlymq_operator.kube.objects import names
from orderlymq_operator.kube.objects.cluster import (
    Environment,
    RaftGroupFacts,
    group_set,
    kube_revision,
    name_server_revision,
    name_server_set,
    settings_objects,
)
from orderlymq_operator.kube.objects.pods import tls_mode_of
from orderlymq_operator.kube.observe.cluster import Live
from orderlymq_operator.kube.observe.desired import desired_state
from orderlymq_operator.kube.observe.pods import pod_facts
from orderlymq_operator.kube.reconcile.accepted import with_tls_step
from orderlymq_operator.kube.resources import SECRETS, STATEFUL_SETS, Json
from orderlymq_operator.plan.actions import RestartNameServer, RestartReplica
from orderlymq_operator.plan.planner import plan
from orderlymq_operator.resources.kinds import Cluster
from tests.operator.kube.reconcile.refusals.test_missing_secrets import evicted, pair
from tests.operator.kube.samples import IMAGE, NAMESPACE, cluster, pod
from tests.operator.kube.smallcluster import small_cluster

_READY: Final = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
_PASSES_MAX: Final = 30
# One of each StatefulSet.
PODS: Final = ("demo-nameserver-0", "demo-0-0")
RESTARTS: Final = (RestartNameServer, RestartReplica)
# With Disabled a spec may no longer name a key pair, but pods of the previous mode still need it.
_SPECS: Final[dict[str, dict[str, Any]]] = {
    "Disabled": {"mode": "Disabled"},
    "Disabled, with its key pair": {"mode": "Disabled", "secretName": "pair"},
    "Permissive": {"mode": "Permissive", "secretName": "pair"},
    "Enforcing": {"mode": "Enforcing", "secretName": "pair"},
}


@cache
def _wanted(tls: str) -> Cluster:
    parts = {"nameServers": {"replicas": 1}, "security": {"internalTls": "Disabled"}}
    return cluster(**parts, replicasPerGroup=1, tls=json.loads(tls))


@cache
def _objects(text: str) -> tuple[Environment, list[tuple[Json, str]]]:
    """Return a Cluster's StatefulSets, each with the TLS mode in its pods' settings files."""
    wanted = Cluster.model_validate_json(text)
    environment = Environment(
        IMAGE,
        "IfNotPresent",
        kube_revision(wanted, IMAGE),
        name_server_revision(wanted, IMAGE),
        {"demo-0": RaftGroupFacts(1, 1, "20Gi", "10.96.0.7")},
    )
    made = [name_server_set(wanted, environment), group_set(wanted, "demo-0", environment)]
    files = [next(iter(each["data"].values())) for each in settings_objects(wanted, environment)]
    modes = [json.loads(text)["tls"]["mode"] for text in files]
    return environment, list(zip(made, modes, strict=True))


@dataclass
class Roll:
    """The StatefulSets of a Cluster, their pods, and the TLS mode with which each process really runs.

    Attributes:
        templates: by StatefulSet, the TLS mode in the settings of new pods, and their template.
        known: the template that Kubernetes' controller has seen; it may be late.
        running: the mode of each process, by pod.
    """

    tls: Json
    live: Live = field(default_factory=Live)
    templates: dict[str, tuple[Json, str]] = field(default_factory=dict)
    known: dict[str, tuple[Json, str]] = field(default_factory=dict)
    running: dict[str, str] = field(default_factory=dict)
    waits: str = ""
    uids: Any = field(default_factory=count)

    def __post_init__(self) -> None:
        self.apply()
        for name in PODS:
            self.sync(name)
            self.start(name)

    def edit(self, tls: Json) -> None:
        """Edit the mode; if the schema refuses that, make two edits, of which the operator sees only the second."""
        self.tls = tls

    def stop(self, name: str) -> None:
        """Let a pod end."""
        self.live.pods.pop(name, None)
        self.running.pop(name, None)

    def sync(self, name: str) -> None:
        """Let the controller of a pod see the newest template."""
        owner = name.rpartition("-")[0]
        self.known[owner] = self.templates[owner]
        made = self.live.find(STATEFUL_SETS, owner)
        assert made is not None
        made["status"] = {"observedGeneration": made["metadata"]["generation"]}

    def start(self, name: str) -> None:
        """Let Kubernetes make an ended pod again from the template that it has seen."""
        if name in self.live.pods:
            return
        template, mode = self.known[name.rpartition("-")[0]]
        made = pod(name, uid=str(next(self.uids)), conditions=[_READY])
        made["spec"] |= template["spec"]
        made["metadata"] |= deepcopy(template["metadata"])
        made["metadata"]["labels"][names.LABEL_ROLE] = names.LEADER
        self.live.pods[name] = pod_facts(made)
        self.running[name] = mode
        assert not {"disabled", "enforcing"} <= set(self.running.values()), self.running

    def apply(self, _: str = "") -> tuple[Cluster, Environment]:
        """Let the operator apply the StatefulSets."""
        wanted, self.waits = with_tls_step(_wanted(json.dumps(self.tls)), self.live)
        environment, made = _objects(wanted.model_dump_json())
        for each, mode in made:
            name = each["metadata"]["name"]
            before = self.live.find(STATEFUL_SETS, name) or {"metadata": {}, "spec": None}
            generation = before["metadata"].get("generation", 0) + (each["spec"] != before["spec"])
            meta = {**each["metadata"], "generation": generation}
            self.live.put({**each, "metadata": meta, "status": before.get("status") or {}})
            self.templates[name] = (each["spec"]["template"], mode)
        return wanted, environment

    def settle(self) -> None:
        """Let Kubernetes and the operator work until nothing is left to do."""
        for _ in range(_PASSES_MAX):
            for name in PODS:
                self.sync(name)
                self.start(name)
            before = dict(self.templates)
            wanted, environment = self.apply()
            state = desired_state(wanted, [])
            observed = observed_state(wanted, state, self.live, environment)
            self.live.statuses.clear()
            steps = [step for step in plan(state.desired, observed) if isinstance(step, RESTARTS)]
            for step in steps:
                self.stop(PODS[isinstance(step, RestartReplica)])
            if not steps and before == self.templates:
                return
        raise AssertionError(f"no end: {self.waits or self.running}")


_EVENTS: Final = st.one_of(
    st.tuples(st.just("edit"), st.sampled_from(list(_SPECS))),
    st.tuples(st.sampled_from(["stop", "sync", "start"]), st.sampled_from(PODS)),
    st.just(("apply", "")),
)


_SERVER, _BROKER = PODS
# Kubernetes' controller of brokers is late: it makes one pod from the previous template and one from that before.
_LATE: Final = [("sync", _SERVER), ("stop", _SERVER), ("start", _SERVER)]
_ABSENT: Final = [("stop", _BROKER), ("edit", "Enforcing"), ("apply", ""), *_LATE, ("apply", "")]
_KNOWN: Final = [("sync", _SERVER), ("sync", _BROKER)]
_TURNED: Final = [("edit", "Enforcing"), ("apply", ""), *_KNOWN, ("edit", "Disabled")]


@pytest.mark.long
@example("Disabled", [*_ABSENT, *_LATE, ("start", _BROKER)])
@example("Permissive", [*_TURNED, ("apply", ""), *_LATE, ("stop", _BROKER), ("start", _BROKER)])
@settings(deadline=None, max_examples=1_000)
@given(st.sampled_from(list(_SPECS)), st.lists(_EVENTS, max_size=60))
def test_processes_that_do_not_understand_each_other_never_run_together(
    first: str, events: list[tuple[str, str]]
) -> None:
    """Law: processes whose modes cannot talk never run together, whatever is edited and whichever pods fail;
    after the last edit all get its mode.
    """
    roll = Roll(_SPECS[first])
    for what, which in events:
        if what == "edit":
            roll.edit(_SPECS[which])
        else:
            getattr(roll, what)(which)

    roll.settle()

    assert set(roll.running.values()) == {roll.tls["mode"].lower()}
    assert not roll.waits


@pytest.mark.parametrize("mode", ["Disabled", "Permissive", "Enforcing"])
def test_a_pod_without_a_note_is_judged_by_what_it_has(mode: str) -> None:
    """Law: a pod without the mode's annotation is judged by its template, so a new operator knows the mode of older pods."""
    _, made = _objects(_wanted(json.dumps(_SPECS[mode])).model_dump_json())

    for each, _ in made:
        template = deepcopy(each["spec"]["template"])
        assert template["metadata"]["annotations"].pop(names.ANNOTATION_TLS_MODE) == mode
        assert tls_mode_of(template) == mode


async def test_an_edit_says_what_it_waits_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Law: an edit of the mode that still waits says what for, so nobody takes the Cluster for finished."""
    tls = {"secretName": "pair"}
    async with small_cluster(monkeypatch.setattr, tls={**tls, "mode": "Disabled"}) as small:
        small.server.put(SECRETS, pair(tmp_path))
        await evicted(small)
        small.change(tls={**tls, "mode": "Enforcing"})  # Twice, faster than the operator looks.
        await evicted(small)

        text = "tls.mode Enforcing waits until every pod runs with Permissive: pod demo-0-0 has Disabled"
        assert small.condition("Progressing")["message"] == text
        assert small.condition("Ready")["status"] == "False"
        found = small.server.find(STATEFUL_SETS, NAMESPACE, "demo-0")
        assert found is not None
        notes = found["spec"]["template"]["metadata"]["annotations"]
        assert notes[names.ANNOTATION_TLS_MODE] == "Permissive"
