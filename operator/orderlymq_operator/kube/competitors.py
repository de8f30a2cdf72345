"""
Operators of other releases that serve the same namespaces; each holds a Lease in its own namespace.

Pure. Rule: a Lease names the namespaces that its operator serves and whether it claims them. No operator acts beside
another claim; of two that claim, the one with the younger Lease withdraws. So the operator that was installed first acts,
and the second one takes its place when the first is gone.
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
# An operator whose rights went before it, as in `helm uninstall`, leaves its Lease as it was. Clocks of machines
# differ by less than this.
_FORGOTTEN_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class Competitor:
    """An operator that lives, as its Lease describes it.

    Attributes:
        serves: namespaces; empty for all.
        since: when its Lease was made, by the clock of the API server, and where: smaller is older.
        transitions: its token.
    """

    namespace: str
    serves: frozenset[str]
    claims: bool
    since: tuple[str, str]
    transitions: int


def notes(serves: Iterable[str], left: Iterable[str] = (), *, claims: bool) -> dict[str, str]:
    """Return the annotations of the Lease of an operator that serves these namespaces, all when there are none.

    *left* are those of `left_by`.
    """
    found = {
        ANNOTATION_SERVES: ",".join(sorted(serves)) or ALL,
        ANNOTATION_CLAIMS: str(claims).lower(),
    }
    return found | ({ANNOTATION_LEFT: ",".join(sorted(left))} if left else {})


def left_by(lease: Json | None, serves: Iterable[str]) -> frozenset[str]:
    """Return where nobody has released finalizers since holders of a Lease served it; its next one *serves* less, or all."""
    said = (lease or {"metadata": {}})["metadata"].get("annotations") or {}
    texts = (said.get(key, "") for key in (ANNOTATION_SERVES, ANNOTATION_LEFT))
    mine = frozenset(serves)
    before = {name for text in texts for name in text.split(",") if name}
    return frozenset(before - mine) if mine else frozenset()


def competitor_of(lease: Json) -> Competitor:
    """Return whose Lease it is; one without a word about it may serve everything."""
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
    """Return what orders Leases by age, no two alike."""
    meta = lease["metadata"]
    return str(meta.get("creationTimestamp") or ""), meta["namespace"]


def is_forgotten(lease: Json, now: datetime) -> bool:
    """Return whether a Lease was left so long ago that nobody has to wait for its end."""
    renewed = str((lease.get("spec") or {}).get("renewTime") or "")
    try:
        return (now - datetime.fromisoformat(renewed)).total_seconds() > _FORGOTTEN_S
    except (ValueError, TypeError):
        return False


def claiming(serves: Iterable[str], others: Iterable[Competitor]) -> list[Competitor]:
    """Return who claims one of these namespaces, the oldest first."""
    mine = frozenset(serves)
    found = [
        other
        for other in others
        if other.claims and (not mine or not other.serves or mine & other.serves)
    ]
    return sorted(found, key=lambda other: other.since)


def sentence(serves: Iterable[str], other: Competitor) -> str:
    """Return what to report about an operator that acts in place of this one."""
    common = frozenset(serves) & other.serves or frozenset(serves) or other.serves
    what = "namespaces " + ", ".join(sorted(common)) if common else "all namespaces"
    return (
        f"the operator in namespace {other.namespace} acts already and serves {what} as well: uninstall one of the "
        "two, or give each its own watchNamespaces"
    )
