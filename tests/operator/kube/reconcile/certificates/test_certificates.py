"""The Secrets of a Cluster's certificates: our API server keeps them, and handshakes between pods try them."""

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from orderlymq_operator.kube.certificates.authority import CertificateError, Pair, make_authority
from orderlymq_operator.kube.certificates.expiry import certificates_condition
from orderlymq_operator.kube.certificates.record import Issued
from orderlymq_operator.kube.certificates.schedule import AUTHORITY_LIFE, CERTIFICATE_LIFE
from orderlymq_operator.kube.objects import names
from orderlymq_operator.kube.objects.cluster import RaftGroupFacts
from orderlymq_operator.kube.reconcile.certificates import (
    SET_KEPT_AT_WORK,
    Certificates,
    in_use,
)
from orderlymq_operator.kube.resources import (
    CONFIG_MAPS,
    CONSUMER_GROUPS,
    PODS,
    SECRETS,
    STATEFUL_SETS,
)
from orderlymq_protocol.codes import RequestCode
from tests.operator.kube.objectserver import ObjectServer
from tests.operator.kube.reconcile.certificates.certificateworld import (
    FORM,
    GROUP,
    World,
    facts,
    text,
)
from tests.operator.kube.samples import NAMESPACE, custom
from tests.operator.kube.smallcluster import KEY, small_cluster


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    server, now = ObjectServer(), [datetime.now(UTC).replace(microsecond=0)]
    async with server.serving() as api:
        yield World(server, Certificates(api, lambda: now[0]), tmp_path, now)


async def test_a_new_group_enforces_certificates_from_its_first_pod_on(world: World) -> None:
    """Law: a new group uses TLS from its first pod, with one authority and one set of certificates,
    which are never written again.
    """
    found = await world.rest()

    assert facts(found) == {("enforcing", 1, 1, frozenset({1}))}
    assert world.rolled == 0
    assert [path.rpartition("/")[2] for _, path in world.server.writes()] == ["secrets"] * 2
    await world.settle()
    assert world.server.asked == []
    for name in ("demo-1-ca", "demo-0-1-internal-tls"):
        assert world.secret(name)["immutable"]


async def test_a_pod_mounts_its_own_key_and_never_the_authority_s(world: World) -> None:
    """Law: a pod mounts only its own key, never the authority's.

    All pods share one template; the pod's name chooses the files.
    """
    await world.rest()

    spec = world.live.made["StatefulSet", GROUP]["spec"]["template"]["spec"]
    (volume,) = [each for each in spec["volumes"] if each["name"] == "internal-tls"]
    (mount,) = [
        each for each in spec["containers"][0]["volumeMounts"] if each["name"] == "internal-tls"
    ]
    assert mount["subPathExpr"] == "$(POD_NAME)"
    assert mount["readOnly"]
    paths = {item["path"]: item["key"] for item in volume["secret"]["items"]}
    assert {key for path, key in paths.items() if path.startswith("demo-0-1/")} == {
        "demo-0-1.crt",
        "demo-0-1.key",
        "ca.crt",
    }
    assert all(path.count("/") == 1 for path in paths)
    named = {each["secret"]["secretName"] for each in spec["volumes"] if "secret" in each}
    assert not any(name.endswith("-ca") for name in named)


async def test_certificates_and_then_the_authority_are_renewed_in_time(world: World) -> None:
    """Law: certificates, and later the authority, are renewed in time;
    pods are replaced one by one and always trust each other.
    """
    begin = world.now[0]
    await world.rest()

    world.now[0] += CERTIFICATE_LIFE * 2 / 3
    renewed = await world.rest()
    followed = renewed
    while world.now[0] < begin + AUTHORITY_LIFE * 2 / 3:
        world.now[0] += timedelta(days=100)
        followed = await world.rest()

    assert facts(renewed) == {("enforcing", 2, 1, frozenset({1}))}
    assert {each.made.signer for each in followed if each} == {2}
    assert {each.made.trusts for each in followed if each} == {frozenset({2})}
    assert 3 * 11 <= world.rolled <= 3 * 14


async def test_a_running_group_changes_over_and_back_by_way_of_permissive_pods(
    world: World,
) -> None:
    """Law: a group switches TLS on or off in two rolls; pods that accept both come between, so that no call fails."""
    world.change(internalTls="Disabled")
    assert facts(await world.rest()) == {None}

    world.change(internalTls="Enabled")
    enforcing = await world.rest()
    there = world.rolled
    world.change(internalTls="Disabled")
    plain = await world.rest()

    assert facts(enforcing) == {("enforcing", 1, 1, frozenset({1}))}
    assert there == 6
    assert facts(plain) == {None}
    assert world.rolled == 12


async def test_a_group_of_an_earlier_version_stays_as_it_is(world: World) -> None:
    """Law: a new operator does not restart a group of an earlier version; TLS begins when a person sets the field."""
    world.change(internalTls="Disabled")
    await world.rest()
    world.server.asked.clear()
    world.change()

    assert facts(await world.rest()) == {None}
    assert world.server.asked == []


@pytest.mark.parametrize("off", [timedelta(days=300), timedelta(hours=1), -timedelta(hours=1)])
async def test_an_operator_whose_clock_is_wrong_makes_no_certificates(
    tmp_path: Path, off: timedelta
) -> None:
    """Law: an operator whose clock is wrong makes no certificates; their validity would be wrong too."""
    right = datetime.now(UTC).replace(microsecond=0)
    server, now = ObjectServer(), [right + off]
    async with server.serving() as api:
        certificates = Certificates(api, lambda: now[0], lambda: right)
        world = World(server, certificates, tmp_path, now)
        with pytest.raises(CertificateError, match="correct the clock of the node"):
            await world.settle()
        assert server.writes() == []

        now[0] = right + timedelta(minutes=5)
        made = await world.rest()
        now[0] = right + timedelta(days=300)
        assert "correct the clock of the node" in await world.settle()
        assert not world.roll()
        now[0] = right
        assert await world.rest() == made


async def test_a_step_waits_for_a_pod_that_is_away_and_for_a_paused_cluster(world: World) -> None:
    """Law: no next step is made while a pod is missing or the Cluster is paused; the pod might come back with any set."""
    await world.rest()
    world.server.asked.clear()
    world.now[0] += CERTIFICATE_LIFE * 2 / 3

    await world.settle(paused=True)
    away = world.live.pods.pop("demo-0-2")
    await world.settle()
    waited = list(world.server.asked)
    world.live.pods["demo-0-2"] = away

    assert waited == []
    assert facts(await world.rest()) == {("enforcing", 2, 1, frozenset({1}))}


async def test_an_operator_that_ends_between_secret_and_stateful_set_goes_on(world: World) -> None:
    """Law: an operator that ended between Secret and StatefulSet goes on with the Secrets that it made;
    a trusted authority signs.
    """
    before = dict(world.live.made)
    await world.settle()
    world.live.made = before

    assert facts(await world.rest()) == {("enforcing", 1, 1, frozenset({1}))}


async def test_a_user_s_issuer_takes_the_place_of_the_authority_and_back(world: World) -> None:
    """Law: a change to a user's issuer and back takes three rolls each; in the end it signs alone,
    and its renewals are followed.
    """
    await world.rest()
    mine = make_authority("mine", world.now[0])
    world.put_issuer(mine)

    world.change(internalIssuer={"secretName": "issuer"})
    first = await world.rest()
    world.put_issuer(make_authority("mine", world.now[0]))
    second = await world.rest()
    world.change()
    third = await world.rest()

    assert facts(first) == {("enforcing", 4, 2, frozenset({2}))}
    assert text(world.secret("demo-0-4-internal-tls"), "ca.crt") == mine.certificate
    assert {each.made.signer for each in second if each} == {3}
    assert {each.made.signer for each in third if each} == {4}
    assert world.rolled == 27


async def test_an_issuer_of_rsa_below_a_root_signs_a_chain(world: World) -> None:
    """Law: an RSA issuer below a root (as cert-manager makes them) works: the root is trusted,
    and certificates carry the chain.
    """
    world.put_issuer(issuer_below_a_root(world.now[0]))
    world.change(internalIssuer={"secretName": "issuer"})

    found = await world.rest()

    world.check()
    assert facts(found) == {("enforcing", 1, 1, frozenset({1}))}


async def test_an_issuer_whose_texts_have_no_last_newline_is_followed(world: World) -> None:
    """Law: an issuer's certificate without a final newline works, and to add the newline later is no change."""
    await world.rest()
    mine = make_authority("mine", world.now[0])
    world.put_issuer(replace(mine, certificate=mine.certificate.rstrip()))
    world.change(internalIssuer={"secretName": "issuer"})
    there = await world.rest()
    world.put_issuer(mine)

    assert facts(there) == facts(await world.rest()) == {("enforcing", 4, 2, frozenset({2}))}
    world.change()
    assert facts(await world.rest()) == {("enforcing", 7, 3, frozenset({3}))}


async def test_an_issuer_with_a_broken_trusted_certificate_is_refused(world: World) -> None:
    await world.rest()
    mine = make_authority("mine", world.now[0])
    broken = mine.certificate.replace("-----\nM", "-----\nA", 1)
    world.put_issuer(replace(mine, trusted=mine.certificate + broken))
    world.change(internalIssuer={"secretName": "issuer"})

    problem = await world.settle()

    assert "'issuer' cannot be used: no certificates" in problem
    assert not world.roll()


async def test_an_issuer_changed_twice_in_a_row_is_followed_step_by_step(world: World) -> None:
    """Law: if an issuer changes twice, the second change waits until no pod uses the certificates before the first one."""
    await world.rest()
    world.change(internalIssuer={"secretName": "issuer"})
    world.put_issuer(make_authority("first", world.now[0]))
    await world.settle()
    world.roll()
    last = make_authority("second", world.now[0])
    world.put_issuer(last)

    await world.rest()

    made = world.said("demo-0-0")
    assert made is not None
    secret = world.secret(names.certificates_secret(GROUP, made.made.number))
    assert text(secret, "ca.crt") == last.certificate


@pytest.mark.parametrize("steps", range(1, 10, 2))
async def test_an_old_issuer_that_is_taken_away_in_the_middle_of_its_roll_cuts_nobody_off(
    world: World, steps: int
) -> None:
    """Law: if an old issuer is removed during a roll, no pod is cut off:
    another authority waits until all pods use this one.
    """
    await world.rest()
    world.put_issuer(make_authority("old", world.now[0] - AUTHORITY_LIFE * 3 / 4))
    world.change(internalIssuer={"secretName": "issuer"})
    for _ in range(steps):
        await world.settle()
        world.roll()
        world.check()
    world.change()

    assert {each.made.trusts for each in await world.rest() if each} == {frozenset({3})}


async def test_an_issuer_that_cannot_sign_stops_new_groups_alone(world: World) -> None:
    """Law: an issuer that cannot sign prevents only new groups; the message says why,
    and running pods keep their certificates.
    """
    leaf = make_authority("mine", world.now[0])
    world.put_issuer(replace(leaf, key=make_authority("other", world.now[0]).key))
    world.change(internalIssuer={"secretName": "issuer"})
    with pytest.raises(CertificateError, match="does not belong to"):
        await world.settle()
    world.change()
    before = await world.rest()

    world.change(internalIssuer={"secretName": "nowhere"})
    problem = await world.settle()

    assert "there is no Secret 'nowhere'" in problem
    assert not world.roll()
    assert before


@pytest.mark.parametrize(
    ("form", "waits"), [(FORM, True), (replace(FORM, closed=True), False)], ids=["new", "volumes"]
)
async def test_a_new_group_without_certificates_is_left_out_where_that_is_safe(
    world: World, form: RaftGroupFacts, waits: bool
) -> None:
    """Law: a new group without certificates is left out of the plan only if it has no volumes;
    otherwise messages could be lost.
    """
    await world.rest()
    world.change(internalIssuer={"secretName": "nowhere"})
    world.server.drop(SECRETS, NAMESPACE, "demo-1-ca")
    world.certificates.forget((NAMESPACE, "demo"))
    wanted = {GROUP: FORM, "demo-1": form}

    async def settled() -> tuple[dict[str, RaftGroupFacts], str]:
        return await world.certificates.settle(world.cluster, world.live, wanted, paused=False)

    if waits:
        made, problem = await settled()
        assert list(made) == [GROUP]
        assert "'demo-1-ca' is gone" in problem
    else:
        with pytest.raises(CertificateError, match="'demo-1-ca' is gone"):
            await settled()


async def test_a_secret_of_somebody_else_is_never_taken_for_ours(world: World) -> None:
    """Law: a Secret that somebody else made is never used, because its maker could then choose the replicas' keys."""
    forged = make_authority("demo", world.now[0])
    for name in ("demo-1-ca", "demo-0-1-internal-tls"):
        world.put_issuer(forged, name)

    found = await world.rest()

    assert facts(found) == {("enforcing", 2, 2, frozenset({2}))}
    assert text(world.secret("demo-0-2-internal-tls"), "ca.crt") != forged.certificate


async def test_a_set_that_somebody_deletes_is_followed_by_the_next_one(world: World) -> None:
    """Law: if somebody deletes a set, the next one follows; running pods are replaced before they must start without it."""
    await world.rest()
    world.server.drop(SECRETS, NAMESPACE, "demo-0-1-internal-tls")
    world.now[0] += SET_KEPT_AT_WORK

    await world.settle(paused=True)
    paused = world.roll()
    while True:
        assert not await world.settle()
        if not world.roll():
            break
    world.check()

    assert not paused
    every = [world.said(name) for name in sorted(world.live.pods)]
    assert facts(every) == {("enforcing", 2, 1, frozenset({1}))}
    assert world.rolled == 3
    world.server.asked.clear()
    await world.settle()
    assert world.server.asked == []


async def test_a_lost_authority_is_reported_and_breaks_nothing(world: World) -> None:
    """Law: a lost authority is reported and pods run on; no new authority is made under its number,
    because none would trust it.
    """
    await world.rest()
    world.server.drop(SECRETS, NAMESPACE, "demo-1-ca")
    world.now[0] += timedelta(days=300)

    problem = await world.settle()

    assert "'demo-1-ca' is gone" in problem
    assert not world.roll()
    world.check()


async def test_a_lost_authority_is_cured_as_the_message_says(world: World) -> None:
    """Law: the cure in the message works: after TLS is switched off and on, there is a new authority."""
    await world.rest()
    world.server.drop(SECRETS, NAMESPACE, "demo-1-ca")
    world.change(internalTls="Disabled")
    assert facts(await world.rest()) == {None}

    world.change(internalTls="Enabled")

    assert facts(await world.rest()) == {("enforcing", 2, 1, frozenset({1}))}
    world.secret("demo-1-ca")


async def test_an_issuer_that_is_missing_leaves_a_plain_group_running(world: World) -> None:
    """Law: a group without TLS stays so while the issuer that it was to use is missing."""
    world.change(internalTls="Disabled")
    await world.rest()

    world.change(internalTls="Enabled", internalIssuer={"secretName": "nowhere"})
    problem = await world.settle()

    assert "there is no Secret 'nowhere'" in problem
    assert not world.roll()


async def test_a_pod_with_former_certificates_is_replaced_and_a_missing_issuer_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Law: a pod with older certificates counts as one with older settings and is replaced;
    a missing issuer is a condition.
    """
    async with small_cluster(monkeypatch.setattr) as small:
        while await small.reconciler.reconcile(KEY) is not None:
            pass
        small.change(security={"internalTls": "Enabled", "internalIssuer": {"secretName": "gone"}})
        await small.reconciler.reconcile(KEY)
        told = small.condition("Ready")
        small.server.writes()

        small.change(security={"internalTls": "Enabled"})
        await small.reconciler.reconcile(KEY)

        assert told["reason"] == "SecretMissing"
        assert "'gone', which spec.security.internalIssuer names" in told["message"]
        made = small.server.writes()
        assert ("POST", "/api/v1/namespaces/shop/pods/demo-0-0/eviction") in made
        settings = small.server.find(CONFIG_MAPS, NAMESPACE, "demo-0")
        assert settings is not None
        assert any('"mode": "permissive"' in text for text in settings["data"].values())


async def test_no_pod_is_replaced_by_one_without_certificates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Law: if all Secrets of a Cluster are deleted, no pod is replaced, because its successor would have no certificates."""
    async with small_cluster(monkeypatch.setattr) as small:
        while await small.reconciler.reconcile(KEY) is not None:
            pass
        runs = small.server.find(PODS, NAMESPACE, "demo-0-0")
        assert runs is not None
        small.change(security={"internalTls": "Enabled"})
        await small.reconciler.reconcile(KEY)
        small.shown(PODS, small.server.put(PODS, runs), gone=False)
        for name in ("demo-1-ca", "demo-0-1-internal-tls"):
            small.server.drop(SECRETS, NAMESPACE, name)
        small.server.writes()

        for _ in range(3):
            await small.reconciler.reconcile(KEY)

        evicted = [path for _, path, *_ in small.server.writes() if path.endswith("/eviction")]
        assert "/api/v1/namespaces/shop/pods/demo-0-0/eviction" not in evicted
        ready = small.condition("Ready")
        assert ready["reason"] == "SecretMissing"
        assert "'demo-1-ca' is gone" in ready["message"]


async def test_a_new_group_without_certificates_holds_up_nothing_of_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Law: a new group without certificates does not delay the others: a new ConsumerGroup reaches them,
    and a condition says what is missing.
    """
    async with small_cluster(monkeypatch.setattr) as small:
        while await small.reconciler.reconcile(KEY) is not None:
            pass
        issuer = {"internalTls": "Enabled", "internalIssuer": {"secretName": "gone"}}
        small.change(groups=2, security=issuer)
        small.server.put(CONSUMER_GROUPS, custom("ConsumerGroup", "fresh"))
        small.reconciler.inventory.invalidate()

        await small.reconciler.reconcile(KEY)

        asked = [code for code, *_ in small.scripted.asked]
        assert RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP in asked
        assert small.server.find(STATEFUL_SETS, NAMESPACE, "demo-1") is None
        assert small.condition("Ready")["reason"] == "SecretMissing"


@pytest.mark.parametrize("said", ["", "{}", "[1]", '{"number": 1}', "x" * 5000])
def test_an_annotation_of_another_form_counts_as_none(said: str) -> None:
    """Law: an annotation that cannot be parsed counts as none; brokers may write their own pods' annotations."""
    assert Issued.parsed(said) is None


def issuer_below_a_root(now: datetime) -> Pair:
    root_key = rsa.generate_private_key(65537, 2048)
    key = rsa.generate_private_key(65537, 2048)
    root = _authority("root", root_key, "root", root_key, now)
    below = _authority("below", key, "root", root_key, now)
    pem = serialization.Encoding.PEM
    shape, plain = serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    return Pair(
        below.public_bytes(pem).decode(),
        key.private_bytes(pem, shape, plain).decode(),
        root.public_bytes(pem).decode(),
    )


def _authority(
    name: str, key: rsa.RSAPrivateKey, signer: str, signing: rsa.RSAPrivateKey, now: datetime
) -> x509.Certificate:
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, signer)]))
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=90))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        # Libraries compute key identifiers otherwise; a signed certificate must name its signer as the signer names itself.
        .add_extension(x509.SubjectKeyIdentifier(name.encode()), critical=False)
        .sign(signing, hashes.SHA256())
    )


async def test_pods_that_nobody_replaces_are_reported_before_their_certificates_end(
    world: World,
) -> None:
    """Law: pods whose certificates end soon, and that nobody replaces, are reported; the newest set alone is not enough."""
    await world.rest()
    began = world.now[0]

    def told(*, paused: bool = False) -> tuple[str, str]:
        report = certificates_condition(
            in_use(world.cluster, world.live), world.now[0], paused=paused
        )
        return report.reason, report.message

    assert told()[0] == "CertificatesRenewed"
    world.now[0] = began + timedelta(days=300)
    await world.settle()
    assert told()[0] == "CertificatesRenewed"
    world.now[0] = began + timedelta(days=310)
    ends = f"{began + CERTIFICATE_LIFE:%Y-%m-%d}"
    assert told() == (
        "CertificateExpires",
        f"certificates of {GROUP} end on {ends}: its pods have not been replaced since newer ones were due",
    )
    assert told(paused=True)[1].endswith("so no pod is replaced")

    world.roll()
    assert told()[0] == "CertificateExpires"  # one pod of three has the newest set
    await world.rest()
    assert told()[0] == "CertificatesRenewed"
    world.now[0] += timedelta(days=400)
    assert f"certificates of {GROUP} ended on" in told()[1]


async def test_a_group_without_certificates_has_none_that_end(world: World) -> None:
    """Law: a group without TLS has no certificates that end, and that is no warning."""
    world.change(internalTls="Disabled")
    await world.rest()

    report = certificates_condition(in_use(world.cluster, world.live), world.now[0], paused=False)

    assert (report.status, report.reason) == ("True", "NoCertificates")
