"""
The certificates of a Cluster's replicas: makes those that are due, and selects those for the next pods.

`kube.certificates` decides; this module reads and writes. Rules: a Secret is made and never changed. A Secret that
exists already, because an earlier reconcile ended too early, is used unchanged. Keys are read to sign and never kept.
If certificates cannot be made, running broker groups keep those that they have, and the problem is reported.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from orderlymq_operator.kube.api import Api
from orderlymq_operator.kube.cachedstate import may_change
from orderlymq_operator.kube.certificates.authority import (
    CertificateError,
    Pair,
    certificates_in,
    check_authority,
    issue,
    make_authority,
)
from orderlymq_operator.kube.certificates.expiry import most_urgent
from orderlymq_operator.kube.certificates.holders import holders
from orderlymq_operator.kube.certificates.record import Issued, Mode, next_mode
from orderlymq_operator.kube.certificates.schedule import (
    CERTIFICATE_LIFE,
    CLOCK_SKEW,
    CertificateSet,
    Issue,
    MakeAuthority,
    Use,
    next_steps,
)
from orderlymq_operator.kube.errors import ConflictError
from orderlymq_operator.kube.objects import names
from orderlymq_operator.kube.objects.certificates import (
    KnownAuthority,
    authority_secret,
    certificates_secret,
    issued_in,
    known_authority,
    pair_in,
)
from orderlymq_operator.kube.objects.cluster import RaftGroupFacts
from orderlymq_operator.kube.observe.cluster import Live
from orderlymq_operator.kube.observe.inventory import ClusterKey
from orderlymq_operator.kube.resources import SECRETS, STATEFUL_SETS, Json
from orderlymq_operator.resources.kinds import Cluster

# How often the operator checks that a set's Secret exists: if all pods are ready, and if a pod may be about to start.
SET_KEPT: Final = timedelta(minutes=30)
SET_KEPT_AT_WORK: Final = timedelta(minutes=1)
_MINUTE: Final = "%Y-%m-%d %H:%M"
# The most steps of one reconcile: an authority and the sets that it signs, and more if Secrets of earlier attempts
# exist.
_STEPS_MAX: Final = 16


@dataclass(slots=True)
class GroupCertificates:
    """The certificates of one broker group with TLS between its replicas.

    Attributes:
        mode: the mode with which its next pods start.
        issued: its newest set; None before the first.
        running: the sets with which its pods were made.
        exists: whether it has a StatefulSet; if it runs without TLS, it continues so while no certificates can be made.
        has_all: whether every pod exists, so that its set is known, and the Cluster is not paused.
        is_calm: whether every pod is ready.
        lost: whether the Secret of the newest set is gone.
    """

    mode: Mode
    issued: Issued | None
    running: list[Issued]
    exists: bool
    has_all: bool
    is_calm: bool = True
    lost: bool = False

    @property
    def may_change(self) -> bool:
        """True if it may get another set."""
        return self.issued is None or self.has_all

    @property
    def use(self) -> Use:
        """The sets for the schedule; includes the newest set, with which the next pods are made."""
        every = [*self.running, *([self.issued] if self.issued else [])]
        pairs = frozenset((each.made.signer, each.made.trusts) for each in every)
        return Use(self.issued.made if self.issued else None, pairs, self.lost)


@dataclass(slots=True)
class _Scope:
    """The certificates of one Cluster during one reconcile."""

    cluster: Cluster
    namespace: str
    now: datetime
    groups: dict[str, GroupCertificates]
    authorities: dict[int, KnownAuthority] = field(default_factory=dict)

    def is_settled(self, newest: int) -> bool:
        """Return whether every pod uses the *newest* authority and trusts no other."""
        only = (newest, frozenset({newest}))
        return all(group.use.running <= {only} for group in self.groups.values())


class Certificates:
    """Makes authorities and certificates; *now* returns the time, *server_now* that of the API server."""

    def __init__(
        self,
        api: Api,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        server_now: Callable[[], datetime | None] = lambda: None,
    ) -> None:
        self._api = api
        self._now = now
        self._server_now = server_now
        # Authorities without their keys, by Cluster and its UID.
        self._known: dict[ClusterKey, tuple[str, dict[int, KnownAuthority]]] = {}
        # When the Secret of a broker group's newest set was last seen, by Cluster and name.
        self._sets: dict[ClusterKey, dict[str, datetime]] = {}
        self._lost: set[ClusterKey] = set()

    def forget(self, key: ClusterKey) -> None:
        """Drop all state of a Cluster that is gone."""
        self._known.pop(key, None)
        self._sets.pop(key, None)
        self._lost.discard(key)

    def are_lost(self, key: ClusterKey) -> bool:
        """Return whether the Secret of a newest set is gone, so that new pods would wait for it."""
        return key in self._lost

    async def settle(
        self, cluster: Cluster, live: Live, forms: Mapping[str, RaftGroupFacts], *, paused: bool
    ) -> tuple[dict[str, RaftGroupFacts], str]:
        """Return *forms* with the certificates of their next pods, and why certificates cannot be renewed, or empty.

        A *paused* Cluster gets certificates only for new broker groups. New broker groups that cannot get certificates
        are left out, because they must not start.

        Raises:
            ApiError: a Secret cannot be read or made now.
            CertificateError: certificates cannot be made, and the Cluster cannot continue without them.
        """
        groups = {
            name: found
            for name, form in forms.items()
            if (found := group_certificates(cluster, live, name, form, paused=paused)) is not None
        }
        problem = ""
        meta = cluster.metadata
        namespace = meta.namespace or ""
        if not groups:
            # No pod needs an authority. If its Secret is deleted now, it must not sign when TLS is enabled again.
            self.forget((namespace, meta.name))
        else:
            uid, known = self._known.get((namespace, meta.name), ("", {}))
            authorities = known if uid == meta.uid else {}
            self._known[namespace, meta.name] = (meta.uid or "", authorities)
            scope = _Scope(cluster, namespace, self._now(), groups, authorities)
            try:
                problem = await self._make(scope)
            except CertificateError as error:
                problem = str(error)
            is_lost = any(group.lost for group in groups.values())
            (self._lost.add if is_lost else self._lost.discard)((namespace, meta.name))
        lacking = {
            name for name, found in groups.items() if found.issued is None and not found.exists
        }
        if lacking:
            problem = problem or "no authority is available to sign certificates of replicas"
            if not _can_wait(lacking, forms, live):
                raise CertificateError(problem)
        made = {}
        for name, form in forms.items():
            if name in lacking:
                continue
            found = groups.get(name)
            issued = found and found.issued
            made[name] = replace(
                form, certificates=replace(issued, mode=found.mode) if found and issued else None
            )
        return made, problem

    async def _make(self, scope: _Scope) -> str:
        """Make the authorities and sets that are due; return the problem of the issuer, which does not stop the rest.

        Raises:
            CertificateError: a needed Secret does not exist or is not this Cluster's.
        """
        await self._learn(scope)
        await self._look_for_sets(scope)
        problem = await self._follow_issuer(scope)
        renews = scope.cluster.spec.security.internal_issuer is None
        for _ in range(_STEPS_MAX):
            uses = {name: group.use for name, group in scope.groups.items()}
            facts = [known.facts for known in scope.authorities.values()]
            steps = [
                step
                for step in next_steps(scope.now, facts, uses, renews=renews)
                if isinstance(step, MakeAuthority) or scope.groups[step.name].may_change
            ]
            for step in steps:
                match step:
                    case MakeAuthority(number):
                        await self._add_authority(scope, number, None, "")
                    case Issue():
                        await self._issue(scope, step)
            if not steps:
                break
        return problem

    async def _learn(self, scope: _Scope) -> None:
        """Read the authorities that sets name and that are not in memory yet."""
        sets = [group.issued.made for group in scope.groups.values() if group.issued]
        numbers = {number for made in sets for number in (*made.trusts, made.signer)}
        for number in sorted(numbers - set(scope.authorities)):
            await self._authority(scope, number)

    async def _look_for_sets(self, scope: _Scope) -> None:
        """Note the sets whose Secrets were deleted, because a pod that restarts would wait forever for its Secret."""
        seen = self._sets.setdefault((scope.namespace, scope.cluster.metadata.name), {})
        for name, group in scope.groups.items():
            if group.issued is None or not group.may_change:
                continue
            secret = names.certificates_secret(name, group.issued.made.number)
            kept = SET_KEPT if group.is_calm and not may_change() else SET_KEPT_AT_WORK
            if secret in seen and timedelta() <= scope.now - seen[secret] < kept:
                continue
            group.lost = await self._api.get(SECRETS, scope.namespace, secret) is None
            if not group.lost:
                seen[secret] = scope.now

    async def _authority(self, scope: _Scope, number: int) -> Pair:
        """Read an authority with its key; keep the authority in memory without the key.

        Raises:
            CertificateError: its Secret is gone or not this Cluster's.
        """
        name = names.authority_secret(scope.cluster, number)
        secret = await self._api.get(SECRETS, scope.namespace, name)
        known = known_authority(scope.cluster, number, secret)
        if secret is None or known is None:
            raise CertificateError(
                f"Secret {name!r} is gone or does not belong to this Cluster, so certificates of replicas cannot be renewed; "
                "restore it, or set spec.security.internalTls to Disabled and, after the roll, back to Enabled"
            )
        scope.authorities[number] = known
        return pair_in(secret)

    async def _follow_issuer(self, scope: _Scope) -> str:
        """Copy the authority of the issuer that the spec names; return the problem with it, or empty.

        An authority follows another one only when no pod uses an earlier one any more.
        """
        newest = max(scope.authorities, default=0)
        present = scope.authorities.get(newest)
        issuer = scope.cluster.spec.security.internal_issuer
        if issuer is None:
            if present is not None and present.issuer and scope.is_settled(newest):
                await self._add_authority(scope, newest + 1, None, "")
            return ""
        name = issuer.secret_name
        found = await self._api.get(SECRETS, scope.namespace, name)
        if found is None:
            return f"there is no Secret {name!r}, which spec.security.internalIssuer names"
        pair = pair_in(found)
        try:
            check_authority(pair, scope.now)
        except CertificateError as error:
            return f"Secret {name!r} cannot be used: {error}"
        is_new = present is None or not _is_same(present, pair, name)
        if is_new and scope.is_settled(newest):
            await self._add_authority(scope, newest + 1, pair, name)
        return ""

    async def _add_authority(
        self, scope: _Scope, number: int, issuing: Pair | None, issuer: str
    ) -> None:
        """Make an authority with the first free number from *number* on, or use an existing equal one.

        *issuing* is the pair in the Secret *issuer*; None makes an authority of the Cluster's own.
        """
        self._check_clock(scope)
        pair = issuing or make_authority(scope.cluster.metadata.name, scope.now)
        for free in range(number, number + _STEPS_MAX):
            made = authority_secret(scope.cluster, free, pair, issuer)
            known = known_authority(scope.cluster, free, await self._created(scope, made))
            if known is not None and _is_same(known, issuing, issuer):
                scope.authorities[free] = known
                return
        name = names.authority_secret(scope.cluster, number)
        raise CertificateError(
            f"Secret {name!r} and those that follow it do not belong to this Cluster; delete them"
        )

    async def _issue(self, scope: _Scope, step: Issue) -> None:
        """Make a set of certificates, or use an equal one from an earlier reconcile."""
        self._check_clock(scope)
        group = scope.groups[step.name]
        signer = await self._authority(scope, step.signer)
        pairs = {
            holder.name: issue(signer, holder, scope.now)
            for holder in holders(scope.cluster, step.name)
        }
        ends = min(scope.now + CERTIFICATE_LIFE, scope.authorities[step.signer].facts.ends)
        trusted = [scope.authorities[each].trusted for each in sorted(step.trusts)]
        certificates_in("".join(trusted))  # raises if pods could not read it
        for number in range(step.number, step.number + _STEPS_MAX):
            made = CertificateSet(number, step.signer, step.trusts, scope.now, ends)
            wanted = Issued(group.mode, made)
            body = certificates_secret(scope.cluster, step.name, wanted, pairs, trusted)
            found = await self._created(scope, body)
            issued = issued_in(scope.cluster, found)
            if issued is None or found is None:
                continue
            # No pod would trust a set of a former authority with the same number.
            if (
                issued.made.signer,
                issued.made.trusts,
                pair_in(found).trusted,
            ) == (step.signer, step.trusts, "".join(dict.fromkeys(trusted))):
                group.issued, group.lost = issued, False
                return
        name = names.certificates_secret(step.name, step.number)
        raise CertificateError(
            f"Secret {name!r} and those that follow it do not belong to this Cluster; delete them"
        )

    def _check_clock(self, scope: _Scope) -> None:
        """Check the clock, so that no certificate becomes valid too late or expires too early.

        Raises:
            CertificateError: this process's clock and the API server's clock differ too much.
        """
        theirs = self._server_now()
        if theirs is not None and abs(scope.now - theirs) > CLOCK_SKEW:
            raise CertificateError(
                f"the operator's clock shows {scope.now:{_MINUTE}} and that of the API server {theirs:{_MINUTE}}, so no "
                "certificates of replicas are issued; correct the clock of the node"
            )

    async def _created(self, scope: _Scope, made: Json) -> Json | None:
        """Make a Secret and return it; if it exists already, return the existing one."""
        try:
            return await self._api.create(SECRETS, scope.namespace, made)
        except ConflictError:
            return await self._api.get(SECRETS, scope.namespace, made["metadata"]["name"])


def group_certificates(
    cluster: Cluster, live: Live, group: str, form: RaftGroupFacts, *, paused: bool
) -> GroupCertificates | None:
    """Return the certificates of a broker group; None if it has no TLS between its replicas."""
    present = live.find(STATEFUL_SETS, group)
    notes = (present or {"metadata": {}})["metadata"].get("annotations") or {}
    issued = Issued.parsed(notes.get(names.ANNOTATION_CERTIFICATES))
    every = live.group_pods(group).values()
    pods = [Issued.parsed(pod.annotations.get(names.ANNOTATION_CERTIFICATES)) for pod in every]
    # A missing pod might come back with any set.
    has_all = len(pods) >= form.replicas and not paused
    target = _target(cluster, is_new=present is None, has_set=issued is not None)
    mode = target if present is None else issued.mode if issued else None
    # While updates are paused, the settings of pods that stay must not change; renewals wait for the next pods.
    if present is not None and has_all and cluster.spec.update.mode != "Paused":
        mode = next_mode(target, mode, [each.mode if each else None for each in pods])
    if mode is None:
        return None
    is_calm = all(pod.ready_since is not None for pod in every)
    running = [each for each in pods if each]
    return GroupCertificates(mode, issued, running, present is not None, has_all, is_calm)


def _can_wait(lacking: set[str], forms: Mapping[str, RaftGroupFacts], live: Live) -> bool:
    """Return whether a Cluster can continue without *lacking* broker groups: the last ones, not all, without pods."""
    rest = len(forms) - len(lacking)
    return rest > 0 and all(
        name in lacking and not form.closed and not live.group_pods(name)
        for name, form in list(forms.items())[rest:]
    )


def in_use(cluster: Cluster, live: Live) -> dict[str, CertificateSet]:
    """Return, for each broker group, the set in use by its pods that must be replaced first."""
    found = {}
    for group in cluster.group_names:
        pods = live.group_pods(group).values()
        issued = [Issued.parsed(pod.annotations.get(names.ANNOTATION_CERTIFICATES)) for pod in pods]
        first = most_urgent(each.made for each in issued if each)
        if first is not None:
            found[group] = first
    return found


def _target(cluster: Cluster, *, is_new: bool, has_set: bool) -> Mode | None:
    """Return the desired mode of a broker group; without a setting, a new operator version changes no running one."""
    match cluster.spec.security.internal_tls:
        case "Enabled":
            return "enforcing"
        case "Disabled":
            return None
        case None:
            return "enforcing" if is_new or has_set else None


def _is_same(known: KnownAuthority, issuing: Pair | None, issuer: str) -> bool:
    """Return whether an authority is a copy of *issuing* from *issuer*, or, if None, one of the Cluster's own."""
    if issuing is None:
        return not known.issuer
    return known.issuer == issuer and (known.certificate, known.trusted) == (
        issuing.certificate,
        issuing.trusted,
    )
