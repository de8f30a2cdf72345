"""
Certificates that pods still use although newer ones should have replaced them long ago.

Pure. A set is renewed at two thirds of its life, and pods take the next set when they are replaced. Users who pause
updates or stop the operator need a warning in time. It starts at five sixths of the life: two months before a year
ends.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime

from orderlymq_operator.kube.certificates.schedule import CertificateSet
from orderlymq_operator.plan.actions import ConditionReport

PAUSED = "spec.update.mode is Paused or the Cluster has the annotation orderlymq.io/pause, so no pod is replaced"


def most_urgent(running: Iterable[CertificateSet]) -> CertificateSet | None:
    """Return the set with the earliest deadline; None if there are no sets."""
    return min(running, key=deadline, default=None)


def deadline(made: CertificateSet) -> datetime:
    """Return the time by which pods should use a newer set: five sixths of the life of *made*."""
    return made.begins + (made.ends - made.begins) * 5 / 6


def certificates_condition(
    found: Mapping[str, CertificateSet], now: datetime, *, paused: bool
) -> ConditionReport:
    """Return the condition CertificatesCurrent; *found* has, by broker group, the most urgent set that its pods use."""
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
