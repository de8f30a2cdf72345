"""
Operators of other releases that serve the same namespaces; each holds a Lease in its own namespace.

Pure. Rules: a Lease names the namespaces that its operator serves, and whether the operator claims them. An operator
does not act while another one claims the same namespaces. If two claim them, the one with the younger Lease withdraws.
The operator that was installed first therefore acts, and the second one takes its place when the first is gone.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from orderlymq_operator.kube.resources import Json
from orderlymq_operator.resources.meta import GROUP

ANNOTATION_SERVES: Final = f"{GROUP}/serves"
ANNOTATION_CLAIMS: Final = f"{GROUP}/claims"
ANNOTATION_LEFT: Final = f"{GROUP}/left"
ALL: Final = "*"
# An operator that loses its rights before it ends, as in `helm uninstall`, cannot give back its Lease. Clocks of
# machines differ by less than this time.
_FORGOTTEN_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class Competitor:
    """A living operator, as its Lease describes it.

    Attributes:
        serves: its namespaces; empty for all.
        since: creation time of its Lease by the API server's clock, and the Lease's namespace; a smaller value is
            older.
        transitions: its token.
    """

    namespace: str
    serves: frozenset[str]
    claims: bool
    since: tuple[str, str]
    transitions: int


def notes(serves: Iterable[str], left: Iterable[str] = (), *, claims: bool) -> dict[str, str]:
    """Return the annotations for the Lease of an operator that serves these namespaces; no namespaces means all.

    *left* are the namespaces from `left_by`.
    """
    found = {
        ANNOTATION_SERVES: ",".join(sorted(serves)) or ALL,
        ANNOTATION_CLAIMS: str(claims).lower(),
    }
    return found | ({ANNOTATION_LEFT: ",".join(sorted(left))} if left else {})


def left_by(lease: Json | None, serves: Iterable[str]) -> frozenset[str]:
    """Return the namespaces that former holders of a Lease served, but the next one does not; their finalizers remain.

    *serves* are the namespaces of the next holder. If it is empty, the next holder serves all, and nothing is left.
    """
    said = (lease or {"metadata": {}})["metadata"].get("annotations") or {}
    texts = (said.get(key, "") for key in (ANNOTATION_SERVES, ANNOTATION_LEFT))
    mine = frozenset(serves)
    before = {name for text in texts for name in text.split(",") if name}
    return frozenset(before - mine) if mine else frozenset()


def competitor_of(lease: Json) -> Competitor:
    """Return the operator that a Lease describes; without annotations, it counts as claiming all namespaces."""
    meta, spec = lease["metadata"], lease.get("spec") or {}
    said = meta.get("annotations") or {}
    serves = said.get(ANNOTATION_SERVES, ALL)
    return Competitor(
        namespace=meta["namespace"],
        serves=frozenset() if serves == ALL else frozenset(serves.split(",")),
        claims=said.get(ANNOTATION_CLAIMS, "true") == "true",
        since=age_of(lease),
        transitions=int(spec.get("leaseTransitions") or 0),
    )


def age_of(lease: Json) -> tuple[str, str]:
    """Return a key that sorts Leases by age and is unique."""
    meta = lease["metadata"]
    return str(meta.get("creationTimestamp") or ""), meta["namespace"]


def is_forgotten(lease: Json, now: datetime) -> bool:
    """Return whether a Lease was last renewed so long ago that no operator needs to wait for its end."""
    renewed = str((lease.get("spec") or {}).get("renewTime") or "")
    try:
        return (now - datetime.fromisoformat(renewed)).total_seconds() > _FORGOTTEN_S
    except (ValueError, TypeError):
        return False


def claiming(serves: Iterable[str], others: Iterable[Competitor]) -> list[Competitor]:
    """Return the operators that claim one of these namespaces, the oldest first."""
    mine = frozenset(serves)
    found = [
        other
        for other in others
        if other.claims and (not mine or not other.serves or mine & other.serves)
    ]
    return sorted(found, key=lambda other: other.since)


def sentence(serves: Iterable[str], other: Competitor) -> str:
    """Return the message to report about an operator that acts in place of this one."""
    common = frozenset(serves) & other.serves or frozenset(serves) or other.serves
    what = "namespaces " + ", ".join(sorted(common)) if common else "all namespaces"
    return (
        f"the operator in namespace {other.namespace} is already active and also serves {what}: uninstall one of the two, or "
        "give each its own watchNamespaces"
    )
