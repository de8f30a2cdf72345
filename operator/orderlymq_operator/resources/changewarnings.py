"""
Warnings of the API server about a change, whether made or tried with `--dry-run=server`; they refuse nothing.

Each is a validation of a ValidatingAdmissionPolicy of the chart, whose binding warns. An expression is true if there
is nothing to warn of. It sees one object before and after and not the cluster, so its message names what may follow;
`kubectl orderlymq plan` shows what will.
"""

from collections.abc import Iterator
from typing import Any, Final

from orderlymq_operator.resources.cluster.rollout import LIVE, restart_sentences
from orderlymq_operator.resources.meta import GROUP, VERSION

_PLAN: Final = "`kubectl orderlymq plan -f FILE` says what will happen"
_CONFIRMED: Final = "the change waits until you confirm it as the condition Confirmed says"
_Case = tuple[str, str]


def _keeps_no_less(kept: str) -> str:
    """Return the expression that *kept* has not decreased; SPEC in it stands for the object's spec."""
    return " >= ".join(kept.replace("SPEC", f"{each}.spec") for each in ("object", "oldObject"))


# The values that `plan.settings` computes from a Cluster.
_KEPT_TIME: Final = (
    "(has(SPEC.config.fileReservedTime) ? duration(string(SPEC.config.fileReservedTime) + 'h') : "
    "duration(SPEC.retention.time))"
)
_KEPT_SIZE: Final = (
    "(has(SPEC.retention.size) ? quantity(SPEC.retention.size).asApproximateFloat() : 0.6 * quantity("
    "has(SPEC.storage.autoGrow) ? SPEC.storage.autoGrow.limit : SPEC.storage.size).asApproximateFloat())"
)

# By operation: the expression that is true if there is no warning, and the text of the warning.
_CASES: Final[dict[str, dict[str, list[_Case]]]] = {
    "clusters": {
        "UPDATE": [
            (
                "object.spec.replicasPerGroup != 1 || oldObject.spec.replicasPerGroup == 1",
                f"spec.replicasPerGroup: only one copy of every message is left; {_CONFIRMED}",
            ),
            (
                _keeps_no_less(_KEPT_TIME),
                f"spec.retention.time, spec.config.fileReservedTime: older messages are deleted; {_CONFIRMED}",
            ),
            (
                _keeps_no_less(_KEPT_SIZE),
                "spec.retention.size, spec.storage.autoGrow: each group keeps fewer bytes of messages and deletes the oldest; "
                f"{_CONFIRMED}",
            ),
            (
                "object.spec.groups >= oldObject.spec.groups",
                "spec.groups: the last groups accept no more messages and are removed when they are empty; the removal of "
                "more than one, or of their volumes, waits until you confirm it as the condition Confirmed says",
            ),
        ],
        "DELETE": [
            (
                "oldObject.spec.storage.deleteClaim != 'Delete'",
                "spec.storage.deleteClaim is Delete: all messages of this Cluster are deleted with it",
            ),
        ],
    },
    "topics": {
        "UPDATE": [
            (
                "object.spec.type == 'Ordered' || object.spec.queues == oldObject.spec.queues",
                "spec.queues: keys move to other queues immediately, because only Ordered topics are fenced",
            ),
            (
                "object.spec.type != 'Ordered' || object.spec.queues == oldObject.spec.queues",
                "spec.queues: writes are refused until every ordered consumer group has consumed all messages; then keys move "
                "to other queues",
            ),
        ],
        "DELETE": [
            (
                "oldObject.spec.deletionPolicy != 'Delete'",
                "spec.deletionPolicy is Delete: the messages of this topic are deleted with it",
            ),
        ],
    },
    "consumergroups": {
        "UPDATE": [
            (
                "object.spec.concurrency == oldObject.spec.concurrency",
                "spec.concurrency: the change takes effect when the group's consumers are stopped; until then the group stays "
                "as it was",
            ),
        ],
        "DELETE": [
            (
                "oldObject.spec.deletionPolicy != 'Delete'",
                "spec.deletionPolicy is Delete: the offsets of this group are deleted with it",
            ),
        ],
    },
    "backups": {
        "DELETE": [
            (
                "oldObject.spec.deletionPolicy != 'Delete'",
                "spec.deletionPolicy is Delete: the stored data of this Backup is deleted with it",
            ),
        ],
    },
    "scheduledbackups": {
        "UPDATE": [
            (
                f"{_keeps_no_less('SPEC.retention.keepLast')} && {_keeps_no_less('SPEC.retention.?keepDays.orValue(0)')}",
                "spec.retention: Backups that are no longer kept are deleted with their stored data",
            ),
        ],
    },
    "pipelines": {
        "DELETE": [
            (
                "oldObject.spec.?storage.?deleteClaim.orValue('Retain') != 'Delete'",
                "spec.storage.deleteClaim is Delete: the claim of this Pipeline and all its data are deleted with it",
            ),
        ],
    },
}


def policies(cluster_spec: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the policies without their names, one per resource and operation.

    *cluster_spec* is the schema of a Cluster's spec.
    """
    restarts = {("clusters", "UPDATE"): [*_restarts(cluster_spec)]}
    return [
        _policy(resource, operation, [*cases, *restarts.get((resource, operation), ())])
        for resource, by_operation in _CASES.items()
        for operation, cases in by_operation.items()
    ]


def _restarts(spec: dict[str, Any]) -> Iterator[_Case]:
    """Yield a case for each field of a Cluster whose change restarts pods."""
    for names, sentence in restart_sentences(spec):
        if sentence != LIVE:
            way = "".join(f".?{name}" if name.isalnum() else f'[?"{name}"]' for name in names)
            # Type checking does not find a name that contains a point, so `dyn` turns it off.
            one, other = (
                f"dyn({each})" if "[" in way else each for each in ("object", "oldObject")
            )
            said = f"{sentence[0].lower()}{sentence[1:]}"
            yield (
                f"{one}.spec{way} == {other}.spec{way}",
                f"spec.{'.'.join(names)}: {said} {_PLAN}",
            )


def _policy(resource: str, operation: str, cases: list[_Case]) -> dict[str, Any]:
    return {
        "resource": resource,
        "operation": operation,
        "spec": {
            # If an expression cannot be evaluated, there is no warning.
            "failurePolicy": "Ignore",
            "matchConstraints": {
                "resourceRules": [
                    {
                        "apiGroups": [GROUP],
                        "apiVersions": [VERSION],
                        "operations": [operation],
                        "resources": [resource],
                    }
                ]
            },
            "validations": [
                {"expression": expression, "message": message} for expression, message in cases
            ],
        },
    }
