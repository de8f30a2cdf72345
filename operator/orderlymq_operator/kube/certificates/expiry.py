"""
Certificates that pods still use although newer ones should have replaced them long ago.

Pure. A set is renewed at two thirds of its life, and pods take the next one when they are replaced. Who pauses updates, or
lets the operator rest, must hear of it in time: from five sixths of the life on, two months before a year ends.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime

from orderlymq_operator.kube.certificates.schedule import CertificateSet
from orderlymq_operator.plan.actions import ConditionReport

PAUSED = "spec.update.mode is Paused or the Cluster has the annotation orderlymq.io/pause, so no pod is replaced"


def most_urgent(running: Iterable[CertificateSet]) -> CertificateSet | None:
    """Return the set whose deadline comes before the others'; None without sets."""
    return min(running, key=deadline, default=None)


def deadline(made: CertificateSet) -> datetime:
    """Return until when pods should have taken a newer set: five sixths of its life."""
    return made.begins + (made.ends - made.begins) * 5 / 6


def certificates_condition(
    found: Mapping[str, CertificateSet], now: datetime, *, paused: bool
) -> ConditionReport:
    """Return the condition CertificatesCurrent; *found* has by group what ends first of what its pods use."""
    if not found:
        return ConditionReport("True", "NoCertificates", "replicas use no certificates")
    group, first = min(found.items(), key=lambda item: (deadline(item[1]), item[0]))
    ends = f"{first.ends:%Y-%m-%d}"
    if now < deadline(first):
        return ConditionReport(
            "True", "CertificatesRenewed", f"the first certificate of a replica ends on {ends}"
        )
    verb = "ended" if first.ends <= now else "end"
    why = PAUSED if paused else "its pods have not been replaced since newer ones were due"
    return ConditionReport(
        "False", "CertificateExpires", f"certificates of {group} {verb} on {ends}: {why}"
    )
