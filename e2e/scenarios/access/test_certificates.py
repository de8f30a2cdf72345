"""Replicas authenticate each other by certificates; the authority and all certificates are replaced under load."""

from datetime import UTC, datetime

import pytest
import yaml

from e2e.manifests import secret
from e2e.orders import Orders, kept
from e2e.space import Json, Space
from orderlymq_operator.kube.certificates.authority import make_authority

BROKERS = "orderlymq.io/cluster=demo,app.kubernetes.io/component=broker"
READY = ("cluster/demo", "topic/orders", "consumergroup/billing")
NOTE = "orderlymq.io/certificates"
FOLDER = "/etc/orderlymq-internal-tls"


@pytest.mark.timeout(900)
def test_an_authority_is_replaced_under_load(space: Space, orders: Orders) -> None:
    """There are three rolls: all trust the new authority, it signs all, the former is no longer trusted.

    No send fails.
    """
    space.example("quickstart.yaml")
    space.ready(*READY)
    assert notes(space) == {note("enforcing", 1, 1, 1)}
    pod = space.pods(BROKERS)[0]["metadata"]["name"]
    seen = space.kubectl("exec", pod, "--", "ls", FOLDER).split()
    assert seen == ["ca.crt", "tls.crt", "tls.key"], "a pod sees keys of others"
    orders.start()

    issuer = make_authority("shop", datetime.now(UTC))
    space.apply(secret("shop-issuer", {"tls.crt": issuer.certificate, "tls.key": issuer.key}))
    space.patch("cluster/demo", {"security": {"internalIssuer": {"secretName": "shop-issuer"}}})

    space.until(lambda: notes(space) == {note("enforcing", 4, 2, 2)}, "the issuer is alone", 600)
    space.ready(*READY)
    found = space.kubectl("exec", pod, "--", "cat", f"{FOLDER}/ca.crt")
    assert found.strip() == issuer.certificate.strip()
    kept(orders.finish())


@pytest.mark.timeout(900)
def test_a_cluster_without_certificates_gets_them_under_load(space: Space, orders: Orders) -> None:
    """The steps are plain, permissive, enforcing: none separates replicas from each other."""

    def plain(made: Json) -> None:
        if made["kind"] == "Cluster":
            made["spec"]["security"] = {"internalTls": "Disabled"}

    space.example("quickstart.yaml", plain)
    space.ready(*READY)
    assert notes(space) == {()}
    orders.start()

    space.patch("cluster/demo", {"security": {"internalTls": "Enabled"}})

    space.until(lambda: notes(space) == {note("enforcing", 1, 1, 1)}, "all enforce", 400)
    space.ready(*READY)
    kept(orders.finish())


def note(mode: str, number: int, signer: int, *trusts: int) -> tuple[object, ...]:
    """Return a pod's report of its certificates, without their times."""
    return (mode, number, signer, trusts)


def notes(space: Space) -> set[tuple[object, ...]]:
    """Return the reports of all brokers; empty while one is missing."""
    pods = space.pods(BROKERS)
    if len(pods) != 3:
        return set()
    return {_said(pod["metadata"].get("annotations", {}).get(NOTE, "")) for pod in pods}


def _said(text: str) -> tuple[object, ...]:
    if not text:
        return ()
    found = yaml.safe_load(text)
    return (found["mode"], found["number"], found["signer"], tuple(found["trusts"]))
