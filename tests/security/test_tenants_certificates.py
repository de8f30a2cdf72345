"""Certificates of a Cluster: they are renewed in time, and pods trust each other at every step."""

import ssl
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from orderlymq_operator.kube.certificates.authority import (
    CertificateError,
    Pair,
    issue,
    life_of,
    make_authority,
)
from orderlymq_operator.kube.certificates.holders import holders, uri_of
from orderlymq_operator.kube.certificates.schedule import (
    AUTHORITY_LIFE,
    CERTIFICATE_LIFE,
    Authority,
    CertificateSet,
    Issue,
    MakeAuthority,
    Use,
    next_steps,
)
from tests.operator.kube.samples import cluster

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
NAMES = ("demo-0", "demo-1", "demo-2", "demo-3")


@dataclass
class World:
    """A Cluster over decades: the certificates that were made, and the set with which each pod runs."""

    now: datetime = BEGIN
    authorities: list[Authority] = field(default_factory=list)
    newest: dict[str, CertificateSet] = field(default_factory=dict)
    pods: dict[str, CertificateSet] = field(default_factory=dict)
    rolled: int = 0

    def decide(self) -> int:
        """Make the certificates that are due; return their number."""
        uses = {}
        for name in NAMES:
            runs = {pod: made for pod, made in self.pods.items() if pod.startswith(f"{name}/")}
            pairs = frozenset((made.signer, made.trusts) for made in runs.values())
            uses[name] = Use(self.newest.get(name), pairs)
        steps = next_steps(self.now, self.authorities, uses)
        for step in steps:
            match step:
                case MakeAuthority(number):
                    self.authorities.append(Authority(number, self.now, self.now + AUTHORITY_LIFE))
                case Issue(name, number, signer, trusts):
                    (by,) = [each for each in self.authorities if each.number == signer]
                    ends = min(self.now + CERTIFICATE_LIFE, by.ends)
                    self.newest[name] = CertificateSet(number, signer, trusts, self.now, ends)
        return len(steps)

    def roll(self) -> bool:
        """Replace one pod that runs with an earlier set; return whether there was one."""
        for name in NAMES:
            for index in range(2):
                pod = f"{name}/{index}"
                if name in self.newest and self.pods.get(pod) != self.newest[name]:
                    self.pods[pod] = self.newest[name]
                    self.rolled += 1
                    return True
        return False

    def check(self) -> None:
        """Check that every pod trusts every other one, and that no certificate in use has expired."""
        for one in self.pods.values():
            assert self.now < one.ends
            for other in self.pods.values():
                assert other.signer in one.trusts


def test_two_pods_know_each_other_at_every_moment_of_thirty_years() -> None:
    """Authorities change twice in this time; pods are replaced one by one."""
    world = World()
    while world.now < BEGIN + timedelta(days=30 * 365):
        for _ in range(40):
            made = world.decide()
            if not world.roll() and not made:
                break
            world.check()
        else:
            raise AssertionError(f"it never rests at {world.now}")
        world.check()
        world.now += timedelta(days=10)

    assert 4 <= len(world.authorities) <= 6
    assert world.rolled < 8 * 65  # each pod about twice a year, including changes of the authority


def test_a_cluster_that_stands_still_during_a_change_goes_on_where_it_was() -> None:
    """While pods are not replaced for months, the old authority stays trusted."""
    world = World()
    while world.decide() or world.roll():
        pass
    world.now += AUTHORITY_LIFE * 2 / 3
    world.newest = {
        name: CertificateSet(9, 1, frozenset({1}), world.now, world.now + CERTIFICATE_LIFE)
        for name in NAMES
    }
    world.pods = {f"{name}/{index}": world.newest[name] for name in NAMES for index in range(2)}

    assert world.decide() == 1  # the new authority
    assert world.decide() == len(NAMES)
    assert {made.signer for made in world.newest.values()} == {1}
    assert {made.trusts for made in world.newest.values()} == {frozenset({1, 2})}
    assert world.decide() == 0
    world.roll()
    assert world.decide() == 0
    while world.roll():
        pass
    assert world.decide() == len(NAMES)
    assert {made.signer for made in world.newest.values()} == {2}
    assert {made.trusts for made in world.newest.values()} == {frozenset({1, 2})}


def test_when_every_authority_is_over_everything_begins_again() -> None:
    """The operator was away for eleven years."""
    over = Authority(1, BEGIN - AUTHORITY_LIFE * 2, BEGIN - timedelta(days=1))

    assert next_steps(BEGIN, [over], {}) == [MakeAuthority(2)]
    fresh = Authority(2, BEGIN, BEGIN + AUTHORITY_LIFE)
    assert next_steps(BEGIN, [over, fresh], {"demo-0": Use()}) == [
        Issue("demo-0", 1, 2, frozenset({2}))
    ]


def test_names_are_quoted_so_that_no_identity_is_another_s() -> None:
    """A slash in a name would otherwise begin another part of the identity."""
    assert uri_of("demo", "demo-0", "1") == "orderlymq://demo/demo-0/1"
    assert uri_of("demo", "a/b", "1") == "orderlymq://demo/a%2Fb/1"
    made = cluster(groups=3)
    every = [each.uri for group in made.group_names for each in holders(made, group)]
    assert len(every) == len(set(every)) == 3 * 10


def test_a_certificate_says_who_its_holder_is_and_is_good_for_both_ends(tmp_path: Path) -> None:
    """A certificate has its holder's URI and DNS names, serves both ends, signs nothing, and ends no later than its authority."""
    (replica, *_) = holders(cluster(), "demo-0")
    authority = make_authority("demo", BEGIN)
    late = BEGIN + AUTHORITY_LIFE - timedelta(days=3)

    made = x509.load_pem_x509_certificate(issue(authority, replica, late).certificate.encode())

    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == [
        "orderlymq://demo/demo-0/1"
    ]
    assert "demo-0-0.demo-0-replicas.shop.svc" in names.get_values_for_type(x509.DNSName)
    usage = made.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert set(usage) == {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}
    assert not made.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert made.not_valid_after_utc == life_of(authority.certificate)[1]


def _context(folder: Path, pair: Pair, trusted: Pair, *, server: bool) -> ssl.SSLContext:
    file = folder / ("server.pem" if server else "client.pem")
    file.write_text(pair.certificate + pair.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.load_verify_locations(cadata=trusted.certificate)
    context.load_cert_chain(file)
    return context


def handshake(client: ssl.SSLContext, server: ssl.SSLContext) -> None:
    """Let two ends make a TLS handshake in memory."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(6):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue


def test_two_replicas_greet_each_other_and_a_stranger_is_refused(tmp_path: Path) -> None:
    """Certificates pass OpenSSL's strict checks; one of another Cluster's authority is refused."""
    now = datetime.now(UTC)
    one, other, *_ = holders(cluster(), "demo-0")
    authority, foreign = make_authority("demo", now), make_authority("demo", now)
    server = _context(tmp_path, issue(authority, one, now), authority, server=True)

    handshake(_context(tmp_path, issue(authority, other, now), authority, server=False), server)
    with pytest.raises(ssl.SSLError):
        handshake(_context(tmp_path, issue(foreign, other, now), authority, server=False), server)


@pytest.mark.parametrize("text", ["", "nonsense", "-----BEGIN CERTIFICATE-----\nAAAA\n"])
def test_what_is_no_certificate_is_refused_by_name(text: str) -> None:
    """A Secret that was edited by hand does not end a reconcile."""
    (replica, *_) = holders(cluster(), "demo-0")

    with pytest.raises(CertificateError):
        life_of(text)
    with pytest.raises(CertificateError):
        issue(Pair(text, text), replica, BEGIN)


def test_certificates_that_cannot_live_longer_than_their_authority_are_not_made_again() -> None:
    """An issuer near its end would otherwise cause ever more frequent rolls; a user's issuer is not replaced."""
    ends = BEGIN + timedelta(days=30)
    issuer = Authority(1, BEGIN - timedelta(days=60), ends)
    made = CertificateSet(1, 1, frozenset({1}), BEGIN, ends)
    uses = {"demo-0": Use(made, frozenset({(1, made.trusts)}))}

    late = ends - timedelta(days=1)

    assert next_steps(late, [issuer], uses, renews=False) == []
    assert next_steps(late, [issuer], uses) == [MakeAuthority(2)]
    assert next_steps(ends, [issuer], uses, renews=False) == []
