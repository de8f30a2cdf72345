"""Manifests that cannot be carried out are refused by the API server itself, with a helpful message."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.machine import ROOT
from e2e.space import Json, Space

pytestmark = pytest.mark.ci


def _made(kind: str, spec: Json, name: str = "one") -> str:
    return yaml.safe_dump(
        {
            "apiVersion": "orderlymq.io/v1alpha1",
            "kind": kind,
            "metadata": {"name": name},
            "spec": spec,
        }
    )


_REF = {"clusterRef": {"name": "demo"}}
_CLAIM: Json = {"destination": {"pvc": {"claimName": "backups"}}}
_BUCKET: Json = {"destination": {"objectStore": {"url": "s3://bucket/demo"}}}
_BACKUP = _REF | _CLAIM
_BEGINS: Json = {"bootstrap": {"fromBackup": _CLAIM}}
_FILE = {"secretFrom": {"file": "secret"}}
_ARCHIVE: Json = _REF | {
    "type": "archive",
    "source": {"topic": "orders"},
    "checkpoint": "checkpoint",
    "path": "archive",
}
_ONE_CHECKPOINT = "a checkpoint is valid only for the same source.topic"

# kind, spec, words of the message
WRONG: list[tuple[str, Json, str]] = [
    ("Cluster", {"replicasPerGroup": 2}, 'supported values: "1", "3", "5"'),
    ("Cluster", {"groups": 0}, "spec.groups in body should be greater than or equal to 1"),
    ("Cluster", {"groups": 65}, "spec.groups in body should be less than or equal to 64"),
    ("Cluster", {"grops": 1}, 'unknown field "spec.grops"'),
    ("Cluster", {"storage": {"size": "20 GB"}}, "spec.storage.size in body should match"),
    ("Cluster", {"lock": {"leaseSeconds": 1}}, "greater than or equal to 32"),
    ("Cluster", {"scaleDown": {"policy": "Now"}}, 'supported values: "Refuse", "Drain"'),
    (
        "Cluster",
        {"config": {"raftHeartbeat": "150ms"}},
        "raftElectionTimeout must be at least twice raftHeartbeat",
    ),
    (
        "Cluster",
        {"config": {"raftElectionTimeout": "61s"}},
        "raftElectionTimeout must be at most 60s",
    ),
    (
        "Cluster",
        {"config": {"diskMaxUsedSpaceRatio": 100}},
        "diskMaxUsedSpaceRatio in body should be less than or equal to 99",
    ),
    (
        "Cluster",
        {"tls": {"mode": "Enforcing"}},
        "TLS needs secretName, or outside Kubernetes certificateFile and keyFile",
    ),
    (
        "Cluster",
        {"tls": {"mode": "Enforcing", "secretName": "one", "certificateFile": "x"}},
        "set secretName or the files, not both",
    ),
    ("Topic", {}, "spec.clusterRef: Required value"),
    ("Topic", _REF | {"queues": 0}, "greater than or equal to 1"),
    ("Topic", _REF | {"queues": 1025}, "less than or equal to 1024"),
    ("Topic", _REF | {"topicName": "no spaces"}, "spec.topicName in body should match"),
    (
        "Topic",
        _REF | {"queueChangePolicy": "Expand"},
        "Expand would move keys between the queues of an Ordered topic",
    ),
    ("ConsumerGroup", _REF | {"ordering": "Sorted"}, 'supported values: "Ordered", "Concurrent"'),
    ("ConsumerGroup", _REF | {"consumeTimeout": "15"}, "consumeTimeout in body should match"),
    (
        "User",
        _REF | {"secretFrom": {"file": "a", "env": "b"}},
        "set exactly one of file, env and secret",
    ),
    ("Backup", _REF | {"destination": {}}, "name either pvc or objectStore"),
    (
        "Backup",
        _REF | {"destination": {"pvc": {"claimName": "a", "path": "../b"}}},
        "spec.destination.pvc.path in body should match",
    ),
    ("ScheduledBackup", _BACKUP | {"schedule": "daily"}, "spec.schedule in body should"),
    ("Pipeline", {}, "spec.type: Required value"),
    ("Pipeline", _REF | {"type": "archives"}, 'spec.type: Unsupported value: "archives"'),
    ("Pipeline", _REF | {"type": "archive"}, "archive needs source, checkpoint"),
    (
        "Pipeline",
        _ARCHIVE | {"format": "iceberg"},
        "an archive needs path, or with format: iceberg",
    ),
    ("Pipeline", _ARCHIVE | {"keys": ["id"]}, "keys is a field of redrive, replay, cdc-apply"),
    (
        "Pipeline",
        _ARCHIVE | {"format": "canal"},
        "the format of archive is parquet or delta or iceberg",
    ),
    ("Pipeline", _ARCHIVE | {"trigger": "soon"}, "spec.trigger in body should match"),
    ("Pipeline", _ARCHIVE | {"cheekpoint": "x"}, 'unknown field "spec.cheekpoint"'),
    ("Pipeline", _ARCHIVE | {"schedule": "daily"}, "spec.schedule in body should"),
    (
        "Pipeline",
        _ARCHIVE | {"schedule": "0 3 * * *", "trigger": "10s"},
        "schedule is for pipelines that end",
    ),
    (
        "Pipeline",
        _ARCHIVE | {"schedule": "0 3 * * *", "backend": "sparkApplication"},
        "the backend sparkApplication supports no schedule",
    ),
    (
        "Pipeline",
        {name: value for name, value in _ARCHIVE.items() if name != "clusterRef"},
        "name the Cluster in clusterRef, or set bootstrap",
    ),
    (
        "Pipeline",
        _REF | {"type": "order-audit", "source": {"topic": "orders"}, "archive": "archive"},
        "order-audit needs either source (a topic) or archive (a folder)",
    ),
    (
        "Pipeline",
        _REF | {"type": "order-audit", "source": {"topic": "orders"}, "stream": True},
        "a streaming order-audit needs checkpoint",
    ),
    (
        "Pipeline",
        _ARCHIVE | {"backend": "yarn"},
        'supported values: "pod", "kubernetes", "sparkApplication"',
    ),
    ("Pipeline", _ARCHIVE | {"executors": {"instances": 0}}, "greater than or equal to 1"),
]

# kind, first spec, changed spec, words of the message
IMMUTABLE: list[tuple[str, Json, Json, str]] = [
    ("Cluster", {"groups": 2}, {"groups": 1}, "set scaleDown.policy to Drain"),
    (
        "Cluster",
        {"nameServers": {"replicas": 2}},
        {"nameServers": {"replicas": 1}},
        "name servers cannot be removed: clients keep their addresses",
    ),
    (
        "Cluster",
        {"storage": {"size": "20Gi"}},
        {"storage": {"size": "19Gi"}},
        "storage never shrinks",
    ),
    (
        "Cluster",
        {"storage": {"className": "fast"}},
        {"storage": {"className": "slow"}},
        "cannot be changed once it is set",
    ),
    ("Cluster", {}, {"storage": {"className": "slow"}}, "className cannot be set or removed later"),
    ("Cluster", {}, {"local": {"host": "127.0.0.2"}}, "cannot be changed once it is set"),
    ("Topic", _REF, {"clusterRef": {"name": "other"}}, "cannot be changed once it is set"),
    ("Topic", _REF, _REF | {"type": "Normal"}, "cannot be changed once it is set"),
    ("Topic", _REF, _REF | {"topicName": "other"}, "topicName cannot be set or removed later"),
    (
        "Topic",
        _REF | {"topicName": "a"},
        _REF | {"topicName": "b"},
        "cannot be changed once it is set",
    ),
    ("Topic", _REF | {"queues": 8}, _REF | {"queues": 16}, "queueChangePolicy Reject"),
    (
        "Topic",
        _REF | {"type": "Normal", "queues": 8},
        _REF | {"type": "Normal", "queues": 4},
        "queues cannot be removed while they may hold messages",
    ),
    (
        "ConsumerGroup",
        _REF,
        _REF | {"ordering": "Concurrent"},
        "cannot be changed once it is set",
    ),
    ("ConsumerGroup", _REF, _REF | {"groupName": "x"}, "groupName cannot be set or removed later"),
    (
        "ConsumerGroup",
        _REF,
        {"clusterRef": {"name": "other"}},
        "cannot be changed once it is set",
    ),
    (
        "User",
        _REF | _FILE,
        _REF | _FILE | {"accessKey": "another"},
        "accessKey cannot be set or removed later",
    ),
    (
        "User",
        _REF | _FILE,
        {"clusterRef": {"name": "other"}} | _FILE,
        "cannot be changed once it is set",
    ),
    (
        "Pipeline",
        _ARCHIVE,
        _REF | {"type": "compact", "path": "archive"},
        "cannot be changed once it is set",
    ),
    ("Pipeline", _ARCHIVE, _ARCHIVE | {"source": {"topic": "payments"}}, _ONE_CHECKPOINT),
    ("Pipeline", _ARCHIVE, _ARCHIVE | {"path": "elsewhere"}, _ONE_CHECKPOINT),
    (
        "Pipeline",
        _ARCHIVE | {"storage": {"size": "2Gi"}},
        _ARCHIVE | {"storage": {"size": "1Gi"}},
        "storage never shrinks",
    ),
    (
        "Pipeline",
        _ARCHIVE,
        _ARCHIVE | {"storage": {"claimName": "other"}},
        "className and claimName cannot be set or removed later",
    ),
    ("Backup", _BACKUP, _BACKUP | {"verify": False}, "cannot be changed once it is set"),
    ("Backup", _BACKUP, _BACKUP | _BUCKET, "cannot be changed once it is set"),
    ("Backup", _BACKUP, _BACKUP | {"scratch": {"size": "1Gi"}}, "scratch cannot be set"),
    ("Cluster", {}, _BEGINS, "can be restored from a backup only when it is created"),
    (
        "Cluster",
        _BEGINS,
        {"bootstrap": None},
        "can be restored from a backup only when it is created",
    ),
]

# kind, first spec, changed spec
ALLOWED: list[tuple[str, Json, Json]] = [
    ("Cluster", {"groups": 1}, {"groups": 2}),
    ("Cluster", {"groups": 2}, {"groups": 1, "scaleDown": {"policy": "Drain"}}),
    ("Cluster", {"replicasPerGroup": 3}, {"replicasPerGroup": 5}),
    ("Cluster", {"replicasPerGroup": 5}, {"replicasPerGroup": 1}),
    ("Cluster", {"storage": {"size": "900Mi"}}, {"storage": {"size": "1Gi"}}),
    ("Topic", _REF | {"queues": 4}, _REF | {"queues": 8, "queueChangePolicy": "DrainAndSwitch"}),
    ("Topic", _REF | {"type": "Normal", "queues": 4}, _REF | {"type": "Normal", "queues": 8}),
    ("ConsumerGroup", _REF, _REF | {"enabled": False}),
    ("Backup", _BACKUP, _BACKUP | {"deletionPolicy": "Delete"}),
    ("Cluster", _BEGINS, _BEGINS | {"groups": 2}),
    ("Pipeline", _ARCHIVE, _ARCHIVE | {"trigger": "30s", "suspend": True}),
    (
        "Pipeline",
        _ARCHIVE,
        _ARCHIVE | {"source": {"topic": "payments"}, "checkpoint": "payments", "path": "payments"},
    ),
    (
        "Pipeline",
        _ARCHIVE,
        _ARCHIVE
        | {
            "source": {
                "topic": "orders",
                "options": {"maxOffsetsPerTrigger": 9, "tags": "A", "x": True},
            }
        },
    ),
]


def _ids(rows: list[Any]) -> list[str]:
    return [f"{number}-{row[0]}" for number, row in enumerate(rows)]


@pytest.mark.parametrize(("kind", "spec", "words"), WRONG, ids=_ids(WRONG))
def test_what_cannot_be_obeyed_is_not_accepted(
    bare: Space, kind: str, spec: Json, words: str
) -> None:
    """The API server checks bounds, enums, patterns, unknown fields, and rules between fields."""
    assert words in bare.refused(_made(kind, spec))


@pytest.mark.parametrize(("kind", "before", "after", "words"), IMMUTABLE, ids=_ids(IMMUTABLE))
def test_what_must_not_change_cannot_be_changed(
    bare: Space, kind: str, before: Json, after: Json, words: str
) -> None:
    """Fields on which clients or stored messages rely cannot change."""
    name = f"kept-{abs(hash((words, str(after))))}"
    bare.apply(_made(kind, before, name))

    assert words in bare.refused(_made(kind, after, name))


@pytest.mark.parametrize(("kind", "before", "after"), ALLOWED, ids=_ids(ALLOWED))
def test_what_may_change_can_be_changed(bare: Space, kind: str, before: Json, after: Json) -> None:
    """A rule that refuses too much would be worse than a missing rule."""
    name = f"changed-{abs(hash(str(after)))}"
    bare.apply(_made(kind, before, name))
    bare.apply(_made(kind, after, name))


def test_a_name_that_leaves_no_room_for_what_is_called_after_it_is_refused(bare: Space) -> None:
    """The names of pods, Services and labels are the Cluster's name with a suffix."""
    assert "at most 40 characters" in bare.refused(_made("Cluster", {}, "c" * 41))
    for name in ("two.parts", "4711"):
        assert "must begin with a letter" in bare.refused(_made("Cluster", {}, name))


def test_an_object_waits_for_its_controller_from_the_first_moment_on(bare: Space) -> None:
    """`kubectl wait` works before any controller acts: Ready is Unknown, and names the controller that is awaited."""
    # The object is not stored, because an operator of another scenario may act on it within a second.
    command = ("create", "--dry-run=server", "-o", "json", "-f", "-")
    made = json.loads(bare.kubectl(*command, stdin=_made("Topic", _REF, "early")))

    assert made["status"]["conditions"] == [
        {
            "type": "Ready",
            "status": "Unknown",
            "reason": "Pending",
            "message": "Waiting for controller",
            "lastTransitionTime": "1970-01-01T00:00:00Z",
        }
    ]


def test_kubectl_scale_changes_the_replicas_of_every_group(bare: Space) -> None:
    """Only numbers that a raft group can have are accepted."""
    bare.apply(_made("Cluster", {"replicasPerGroup": 3}, "scaled"))

    bare.kubectl("scale", "cluster.orderlymq.io/scaled", "--replicas=5")

    found = bare.get("cluster.orderlymq.io/scaled")
    assert found is not None
    assert found["spec"]["replicasPerGroup"] == 5
    with pytest.raises(Exception, match='supported values: "1", "3", "5"'):
        bare.kubectl("scale", "cluster.orderlymq.io/scaled", "--replicas=4")


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("cluster", "A set of broker groups that serve the same topics."),
        ("cluster.spec.scaleDown.policy", "removes a group when its messages are consumed"),
        ("topic.spec.queues", "at most this many consumers can share the work"),
        ("consumergroup.spec.ordering", "one consumer per queue, guarded by a queue lock"),
        ("cluster.status.conditions", "wait for the one of type Ready"),
        ("pipeline.spec.storage.deleteClaim", "continues with a retained claim"),
        ("pipeline.status.offsets", "Progress of the checkpoint by queue."),
    ],
)
def test_kubectl_explain_reads_well(bare: Space, field: str, words: str) -> None:
    """Every field has a description."""
    shown = bare.kubectl("explain", field, "--api-version=orderlymq.io/v1alpha1")

    assert words in " ".join(shown.split())


def test_short_names_and_the_category_are_known(bare: Space) -> None:
    """`kubectl get mq` shows all kinds; mqc, mqt, mqg, mqu and mqp show one kind."""
    bare.apply(_made("Cluster", {}, "short"))

    assert "short" in bare.kubectl("get", "mqc")
    assert "cluster.orderlymq.io/short" in bare.kubectl("get", "mq")
    for name in ("mqt", "mqg", "mqu", "mqp"):
        bare.kubectl("get", name)


_SHOWN = [
    path
    for folder in ("kubernetes", "pipelines")
    for path in sorted((ROOT / "examples" / folder).glob("*.yaml"))
]


@pytest.mark.parametrize("path", _SHOWN, ids=lambda path: str(path.stem))
def test_every_example_is_accepted(bare: Space, path: Path) -> None:
    """Every example can be applied; namespaces in it are replaced by this one."""
    text = re.sub(r"^  namespace: .*\n", "", path.read_text(), flags=re.MULTILINE)
    bare.kubectl("create", "--dry-run=server", "--validate=strict", "-f", "-", stdin=text)
