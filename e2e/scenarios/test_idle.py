"""For ten minutes nothing changes."""

import json
import os
import time

import pytest

from e2e.installed import Operator
from e2e.space import Json, Property, Space

IDLE_S = float(os.environ.get("ORDERLYMQ_E2E_IDLE_S", "600"))
_SETTLED_S = 30.0  # after Ready: first actions such as a coarse check of lag are done by then
_LOOK_S = 10.0
# Lag and locks are checked every 10 s, so the results of a change are written by then.
_LOOKS_AFTER = 2
# Twice an hour everything is read again: 7 kinds of resources, 12 kinds that are made for a Cluster, 2 Secrets.
_WHOLE_READING = 21


@pytest.mark.timeout(900)
def test_nothing_is_written_while_nothing_changes(
    space: Space, operator: Operator, record_property: Property
) -> None:
    """The operator polls the brokers, but sends no write to the API server; its lease does not count.

    Its watches show what it needs: it sends less than a read a minute, in addition to one reading of everything.

    On an overloaded machine brokers elect and probes fail, so writes directly after such changes do not count.
    """
    space.example("quickstart.yaml")
    space.ready("cluster/demo", "topic/orders", "consumergroup/billing")
    writes, before = operator.writes(), -1
    while writes != before:
        time.sleep(_SETTLED_S)
        writes, before = operator.writes(), writes

    reads, seen, told = operator.reads(), _pods(space), _told(space)
    changes, busy, idle_s, excused, read = 0, 0, 0.0, 0, 0
    until = time.monotonic() + IDLE_S
    while time.monotonic() < until:
        begun = time.monotonic()
        time.sleep(_LOOK_S)
        now, now_seen, now_told = operator.writes(), _pods(space), _told(space)
        now_reads = operator.reads()
        if now_seen != seen:
            changes, busy = changes + 1, _LOOKS_AFTER + 1
        if busy:
            busy, excused = busy - 1, excused + now - writes
        else:
            idle_s, read = idle_s + time.monotonic() - begun, read + now_reads - reads
            assert now == writes, f"written without a change of pods:\n{told}\n{now_told}"
        writes, reads, seen, told = now, now_reads, now_seen, now_told

    record_property("idle_s", round(idle_s))
    record_property("changes_of_pods", changes)
    record_property("writes_after_them", excused)
    record_property("reads", read)
    assert idle_s >= IDLE_S / 2, "the machine is too busy to know"
    assert read <= _WHOLE_READING + idle_s / 60


def _pods(space: Space) -> Json:
    """Return the pods' state as brokers and kubelets report it: role, term, and conditions with their times."""
    return {
        pod["metadata"]["name"]: (
            pod["metadata"]["labels"].get("orderlymq.io/role"),
            pod["metadata"].get("annotations", {}).get("orderlymq.io/term"),
            [
                (each["type"], each["status"], each.get("lastTransitionTime"))
                for each in pod["status"].get("conditions", [])
            ],
        )
        for pod in space.pods("orderlymq.io/cluster=demo")
    }


def _told(space: Space) -> str:
    """Return the operator's reports of all objects, to compare them if it writes."""
    found = space.items("clusters,topics,consumergroups")
    return json.dumps({each["kind"]: each.get("status") for each in found})
