"""
The next certificate of a Cluster: a pure decision from times and from the certificates that pods run with.

Rules: authorities and certificates are renewed at two thirds of their life. A set of certificates never changes; a new
set gets the next number, and pods take it when they are replaced. A new authority signs nothing before every pod trusts
it. Pods trust the old authority until no pod uses a certificate of it. Two processes can therefore always verify each
other.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, TypeAlias

AUTHORITY_LIFE: Final = timedelta(days=3650)
CERTIFICATE_LIFE: Final = timedelta(days=365)
# A certificate is valid from this long before it is made, because the clocks of nodes differ.
CLOCK_SKEW: Final = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class Authority:
    """An authority, identified by its number; *begins* and *ends* bound its life."""

    number: int
    begins: datetime
    ends: datetime


@dataclass(frozen=True, slots=True)
class CertificateSet:
    """The certificates of one broker group.

    Attributes:
        signer: number of the authority that signed them.
        trusts: numbers of the authorities that their holders trust.
    """

    number: int
    signer: int
    trusts: frozenset[int]
    begins: datetime
    ends: datetime


@dataclass(frozen=True, slots=True)
class Use:
    """The certificate sets of one broker group that exist or are in use.

    Attributes:
        newest: the set with the greatest number; None before the first.
        running: signer and trusts of every set that a pod runs with.
        lost: the Secret of the newest set is gone: its keys are lost, and no pod can start with it.
    """

    newest: CertificateSet | None = None
    running: frozenset[tuple[int, frozenset[int]]] = frozenset()
    lost: bool = False


@dataclass(frozen=True, slots=True)
class MakeAuthority:
    """Make the authority with this number."""

    number: int


@dataclass(frozen=True, slots=True)
class Issue:
    """Make a set of certificates."""

    name: str
    number: int
    signer: int
    trusts: frozenset[int]


Step: TypeAlias = MakeAuthority | Issue


def next_steps(
    now: datetime,
    authorities: Iterable[Authority],
    uses: Mapping[str, Use],
    *,
    renews: bool = True,
) -> list[Step]:
    """Return the authority or certificate sets to make now; an empty list if nothing is due.

    *authorities* are all that exist, including those that have expired. *uses* has an entry for each broker group, by
    name. *renews* is False if the operator does not make authorities but takes them from a user's own issuer.
    """
    known = sorted(authorities, key=lambda each: each.number)
    living = [each for each in known if now < each.ends]
    if renews and (not living or _follows(living[-1], uses.values(), now)):
        return [MakeAuthority(known[-1].number + 1 if known else 1)]
    if not living:
        return []
    signer, trusts = _wanted([each.number for each in living], uses.values())
    ends = {each.number: each.ends for each in living}[signer]
    return [
        Issue(name, 1 if use.newest is None else use.newest.number + 1, signer, trusts)
        for name, use in sorted(uses.items())
        if use.lost or not _serves(use.newest, signer, trusts, now, ends)
    ]


def _follows(newest: Authority, uses: Iterable[Use], now: datetime) -> bool:
    """Return whether the newest authority is due for replacement and every pod uses and trusts only that authority."""
    only = (newest.number, frozenset({newest.number}))
    is_settled = all(use.running <= {only} for use in uses)
    return is_settled and is_due(newest.begins, newest.ends, now)


def _serves(
    made: CertificateSet | None,
    signer: int,
    trusts: frozenset[int],
    now: datetime,
    latest: datetime,
) -> bool:
    """Return whether a set still serves and no new one is needed; *latest* is the latest possible end of a new set."""
    if made is None or (is_due(made.begins, made.ends, now) and made.ends < latest):
        return False
    return (made.signer, made.trusts) == (signer, trusts)


def _wanted(living: Sequence[int], uses: Iterable[Use]) -> tuple[int, frozenset[int]]:
    """Return the signer of new sets and the authorities that they trust, given the sets that pods run with."""
    newest = living[-1]
    if len(living) == 1:
        return newest, frozenset({newest})
    previous = living[-2]
    running = [run for use in uses for run in use.running]
    signer = newest if all(newest in trusted for _, trusted in running) else previous
    if all(signed_by == newest for signed_by, _ in running):
        return signer, frozenset({newest})
    return signer, frozenset({previous, newest})


def is_due(begins: datetime, ends: datetime, now: datetime) -> bool:
    """Return whether two thirds of a life have passed."""
    return now >= begins + (ends - begins) * 2 / 3
