"""
The guard: edits of a Cluster that lose something for good, and their confirmation by an annotation.

Pure. Rules: creating a Cluster needs no confirmation. If the previous spec is not known, any edit may be dangerous.
An edit is dangerous if it deletes messages, or leaves every raft group with one copy of them. Steps that the planner
proves safe are not dangerous: it restarts one replica of a raft group at a time, fences a topic before it expands it,
and removes a raft group only when it is empty. `deletionPolicy` and `storage.deleteClaim` are confirmations
themselves. A confirmation names one act and holds for one edit: it does not confirm a later change.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from orderlymq_operator.plan.settings import broker_options
from orderlymq_operator.resources.cluster.cluster import Cluster
from orderlymq_operator.resources.meta import GROUP
from orderlymq_protocol.plurals import counted

ANNOTATION_CONFIRM: Final = f"{GROUP}/confirm"
ActName: TypeAlias = Literal["ReduceReplicas", "ShortenRetention", "RemoveGroups", "CarryOut"]

_DIGEST_LENGTH: Final = 8  # long enough: the digest need not resist a person who wants to confirm
_SEPARATORS: Final = re.compile(r"[\s,]+")


@dataclass(frozen=True, slots=True)
class Act:
    """One dangerous act of an edit.

    Attributes:
        field: path of the field that was edited.
        text: what would happen.
        token: the text that the annotation must contain to confirm it.
    """

    name: ActName
    field: str
    text: str
    token: str

    @property
    def advice(self) -> str:
        """How the user can continue."""
        return f"to go on, annotate the Cluster with {ANNOTATION_CONFIRM}={self.token}; or revert the edit"


def unconfirmed(before: Cluster | None, after: Cluster, notes: Mapping[str, str]) -> list[Act]:
    """Return the dangerous acts of the edit from *before* to *after* that the annotations *notes* do not confirm.

    *before* is None for a running Cluster whose last carried out spec is not known.
    """
    given = set(_SEPARATORS.split(notes.get(ANNOTATION_CONFIRM, "")))
    return [act for act in dangerous(before, after) if act.token not in given]


def dangerous(before: Cluster | None, after: Cluster) -> list[Act]:
    """Return the dangerous acts of the edit from *before* to *after*; see `unconfirmed`."""
    if before is None:
        text = (
            "no StatefulSet records which spec was applied, in a form that this operator reads, so nothing is applied; make "
            "sure that groups, copies and retention are at least what they were"
        )
        return [_act("CarryOut", "spec", text, after, 0)]
    return [*_replicas(before, after), *_retention(before, after), *_groups(before, after)]


def _replicas(before: Cluster, after: Cluster) -> Iterator[Act]:
    old, new = before.spec.replicas_per_group, after.spec.replicas_per_group
    if new == 1 < old:
        text = (
            f"only one of {old} copies of every message is left in {counted(after.spec.groups, 'group')}: the loss of one disk "
            "loses messages, and the loss of one pod stops its group"
        )
        yield _act("ReduceReplicas", "spec.replicasPerGroup", text, after, new)


def _retention(before: Cluster, after: Cluster) -> Iterator[Act]:
    old, new = broker_options(before)["storage"], broker_options(after)["storage"]
    texts = []
    if new["retention_ms"] < old["retention_ms"]:
        texts.append(
            f"messages that are older than {_hours(new['retention_ms'])} are deleted, which were kept for "
            f"{_hours(old['retention_ms'])}"
        )
    if new["retention_size"] < old["retention_size"]:
        texts.append(
            f"each group keeps {new['retention_size']} bytes of messages and deletes the oldest; it kept "
            f"{old['retention_size']}"
        )
    if texts:
        value = [new["retention_ms"], new["retention_size"]]
        yield _act("ShortenRetention", "spec.retention", " and ".join(texts), after, value)


def _groups(before: Cluster, after: Cluster) -> Iterator[Act]:
    """Yield the removal of several raft groups, or of volumes.

    Removing one raft group is safe: it is empty when it goes, and its volumes stay.
    """
    count = before.spec.groups - after.spec.groups
    deletes = after.spec.storage.delete_claim == "Delete"
    if count > 1 or (count == 1 and deletes):
        text = f"{counted(count, 'group')} will accept no more messages, and will be removed when empty"
        text += ", and their volumes are deleted" if deletes else ""
        yield _act("RemoveGroups", "spec.groups", text, after, after.spec.groups)


def _act(name: ActName, field: str, text: str, after: Cluster, value: int | list[int]) -> Act:
    meta = after.metadata
    facts = [meta.namespace, meta.name, meta.uid, meta.generation, name, value]
    digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:_DIGEST_LENGTH]
    return Act(name, field, text, f"{name}.{digest}")


def _hours(ms: int) -> str:
    return f"{ms / 3_600_000:g}h"
