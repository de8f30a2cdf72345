"""Access to brokers, with a small API server of the test over real HTTP."""

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from orderlymq_operator.kube.cachedstate import deciding_from_cache
from orderlymq_operator.kube.errors import RetryLaterError
from orderlymq_operator.kube.objects.pods import access_by, broker_pod
from orderlymq_operator.kube.observe.credentials import Credentials, SecretGoneError
from orderlymq_operator.kube.observe.desired import DesiredState
from orderlymq_operator.kube.observe.keypair import KeyPair
from orderlymq_operator.kube.observe.pods import pod_facts
from orderlymq_operator.kube.resources import Json
from orderlymq_operator.resources.kinds import Cluster, Desired, User
from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_runtime.security.clustersecret import SECRET_SIZE_MIN
from orderlymq_runtime.security.tls import ClientAuth, ServerTls
from tests.operator.examples import cluster
from tests.operator.kube.apiserver import absent, serving_api
from tests.operator.scripted import Answer, serving
from tests.runtime.certificates import make_authority, make_certificate

ASKS: dict[str, ClientAuth] = {"None": "none", "Optional": "optional", "Required": "required"}
TLS = {"mode": "Enforcing", "secretName": "pair"}


class Secrets:
    """The Secrets of a namespace, by name."""

    def __init__(self) -> None:
        self.texts: dict[str, dict[str, str]] = {}
        self.made: list[str] = []
        self.metadata: dict[str, Json] = {}
        self.reads = 0

    async def answer(self, request: web.Request) -> web.Response:
        """Serve a read."""
        self.reads += 1
        name = request.path.rpartition("/")[2]
        return await absent(request) if name not in self.texts else self._shown(name, 200)

    def _shown(self, name: str, status: int) -> web.Response:
        data = {
            key: base64.b64encode(text.encode()).decode() for key, text in self.texts[name].items()
        }
        found: Json = {"metadata": self.metadata.get(name, {"name": name}), "data": data}
        return web.json_response(found, status=status)

    async def create(self, request: web.Request) -> web.Response:
        """Store what is created."""
        found: Json = await request.json()
        name = found["metadata"]["name"]
        self.made.append(name)
        self.texts[name] = found["stringData"]
        self.metadata[name] = found["metadata"]
        return self._shown(name, 201)


@pytest.fixture
def secrets() -> Secrets:
    return Secrets()


@pytest.fixture
async def access(secrets: Secrets) -> AsyncIterator[Credentials]:
    async with serving_api(
        web.get("/{path:.*}", secrets.answer), web.post("/{path:.*}", secrets.create)
    ) as api:
        made = Credentials(api, lambda: 1)
        yield made
        await made.close()


async def test_a_missing_key_pair_is_reported_in_a_sentence(
    access: Credentials, secrets: Secrets, tmp_path: Path
) -> None:
    """Law: a missing key pair is reported with the Secret and what it lacks; without TLS nothing is."""
    guarded = cluster(tls=TLS)
    assert await access.missing_certificate(cluster()) == ""
    assert "no Secret 'pair'" in await access.missing_certificate(guarded)

    secrets.texts["pair"] = {"tls.crt": "x", "tls.key": "y"}
    assert (await access.missing_certificate(guarded)).endswith("has no ca.crt")
    secrets.texts["pair"]["ca.crt"] = "nonsense"
    assert "is not a certificate" in await access.missing_certificate(guarded)
    secrets.texts["pair"]["ca.crt"] = make_authority(tmp_path).read_text()
    assert "are not a certificate and its key" in await access.missing_certificate(guarded)


async def test_what_is_kept_of_a_cluster_goes_with_it(
    access: Credentials, secrets: Secrets
) -> None:
    """Law: what is kept of a Cluster is dropped with it, so that the operator does not grow."""
    here = cluster()
    meta = here.metadata
    await access.admin(here)
    reads = secrets.reads
    with deciding_from_cache():
        await access.admin(here)
        assert secrets.reads == reads
        access.forget((meta.namespace or "", meta.name))
        await access.admin(here)
    assert secrets.reads > reads


async def test_a_cluster_that_waits_for_its_key_pair_leaves_plain_ones_alone(
    access: Credentials,
) -> None:
    """Law: a Cluster that waits for its key pair does not affect plain ones."""
    await access.admin(cluster(tls=TLS))
    plain = await access.admin(cluster())

    def nothing(request: RemotingCommand) -> RemotingCommand:
        return request.reply(body=b'{"locks": []}')

    async with serving({RequestCode.ORDERLYMQ_LOCK_TABLE: nothing}) as (_, address):
        assert await plain.locks(address) == []


@pytest.mark.parametrize("client_auth", ["None", "Optional", "Required"])
async def test_brokers_that_ask_for_a_certificate_get_the_cluster_s(
    access: Credentials, secrets: Secrets, tmp_path: Path, client_auth: str
) -> None:
    """Law: with clientAuth Required the operator shows the Cluster's certificate."""
    files = make_certificate(make_authority(tmp_path), "replica")
    assert files.certificate is not None
    assert files.key is not None
    assert files.ca is not None
    secrets.texts["pair"] = {
        "tls.crt": files.certificate.read_text(),
        "tls.key": files.key.read_text(),
        "ca.crt": files.ca.read_text(),
    }
    guarded = cluster(tls={**TLS, "clientAuth": client_auth})

    def nothing(request: RemotingCommand) -> RemotingCommand:
        return request.reply(body=b'{"locks": []}')

    tls = ServerTls(files, "enforcing", ASKS[client_auth])
    answers: dict[int, Answer] = {RequestCode.ORDERLYMQ_LOCK_TABLE: nothing}
    async with serving(answers, tls) as (_, address):
        assert await access.missing_certificate(guarded) == ""
        assert await (await access.admin(guarded)).locks(address) == []


async def test_renewed_key_pairs_count_and_those_before_are_forgotten(
    access: Credentials, secrets: Secrets, tmp_path: Path
) -> None:
    """Law: renewed key pairs are used and old ones dropped: one set of connections per Secret."""
    guarded = cluster(tls={**TLS, "clientAuth": "Required"})
    answers: dict[int, Answer] = {
        RequestCode.ORDERLYMQ_LOCK_TABLE: lambda request: request.reply(body=b'{"locks": []}')
    }

    for each in range(3):
        (folder := tmp_path / str(each)).mkdir()
        files = make_certificate(make_authority(folder), "replica")
        assert files.certificate is not None
        assert files.key is not None
        assert files.ca is not None
        secrets.texts["pair"] = {
            "ca.crt": files.ca.read_text(),
            "tls.crt": files.certificate.read_text(),
            "tls.key": files.key.read_text(),
        }
        admin = await access.admin(guarded)
        async with serving(answers, ServerTls(files, "enforcing", "required")) as (_, address):
            assert await admin.locks(address) == []
            await access.admin(cluster(tls={**TLS, "secretName": f"other-{each}"}))
            assert len(access._clients) == 2

    assert len(access._clients) == 2


async def test_a_key_that_is_not_the_certificate_s_is_reported(
    access: Credentials, secrets: Secrets, tmp_path: Path
) -> None:
    """Law: a key that does not belong to its certificate is reported before a pod is made."""
    authority = make_authority(tmp_path)
    one, other = (make_certificate(authority, name) for name in ("one", "other"))
    assert one.certificate is not None
    assert other.key is not None
    secrets.texts["pair"] = {
        "tls.crt": one.certificate.read_text(),
        "tls.key": other.key.read_text(),
        "ca.crt": authority.read_text(),
    }
    guarded = cluster(tls={**TLS, "clientAuth": "Required"})

    assert "are not a certificate and its key" in await access.missing_certificate(guarded)
    await access.admin(guarded)  # It trusts nobody until the Secret is right.


async def test_what_processes_know_each_other_by_is_made_once(
    access: Credentials, secrets: Secrets
) -> None:
    """Law: the secret by which processes know each other is created once; a second one would separate replicas."""
    await access.admin(cluster())
    first = {name: dict(texts) for name, texts in secrets.texts.items()}

    await access.admin(cluster())

    assert secrets.made == ["demo-identity", "demo-operator"]
    assert secrets.texts == first
    assert len(first["demo-identity"]["secret"]) >= SECRET_SIZE_MIN


OWN = ("demo-identity", "demo-operator")


@pytest.mark.parametrize("deleted", OWN)
async def test_a_secret_that_somebody_deletes_is_made_again_as_it_was(
    access: Credentials, secrets: Secrets, deleted: str
) -> None:
    """Law: if the Secret is deleted, it is created again with the same content, which running processes have read."""
    here = cluster()
    await access.admin(here)
    first = {name: dict(texts) for name, texts in secrets.texts.items()}
    del secrets.texts[deleted]

    await access.admin(here, runs=True)

    assert secrets.texts == first


@pytest.mark.parametrize("deleted", OWN)
async def test_no_other_secret_is_made_for_processes_that_run(
    access: Credentials, secrets: Secrets, deleted: str
) -> None:
    """Law: an operator that never saw the Secret creates no other one for running processes, but reports it as missing."""
    here = cluster()
    await access.admin(here)
    restored = secrets.texts.pop(deleted)
    # Like an operator that starts.
    access.forget((here.metadata.namespace or "", here.metadata.name))

    with pytest.raises(SecretGoneError, match=f"Secret '{deleted}' is gone") as refused:
        await access.admin(here, runs=True)

    assert refused.value.condition == "SecretMissing"
    assert deleted not in secrets.texts
    secrets.texts[deleted] = restored
    await access.admin(here, runs=True)


async def test_the_pages_of_a_pod_are_asked_for_as_it_was_made(
    access: Credentials, secrets: Secrets, tmp_path: Path
) -> None:
    """Law: pages of a pod are asked for with the token and authority with which it was made, until those Secrets are gone."""
    for name in ("before", "after"):
        (tmp_path / name).mkdir()
        pair = make_certificate(make_authority(tmp_path / name), "replica")
        assert pair.certificate is not None
        assert pair.key is not None
        assert pair.ca is not None
        secrets.texts[f"pair-{name}"] = {
            "tls.crt": pair.certificate.read_text(),
            "tls.key": pair.key.read_text(),
            "ca.crt": pair.ca.read_text(),
        }
        secrets.texts[f"pages-{name}"] = {"token": f"a token of {name}"}

    def spec(name: str) -> Cluster:
        tls = {"mode": "Permissive", "secretName": f"pair-{name}"}
        return cluster(tls=tls, security={"pagesToken": {"secretName": f"pages-{name}"}})

    made = broker_pod(spec("before"), "demo-0", image="x", pull_policy="Always", revision="1")
    meta = {"name": "demo-0-0", "namespace": "shop", "uid": "1", **made["metadata"]}
    old = pod_facts({**made, "metadata": meta})
    form = access_by(spec("before"))
    assert old.access == form
    for later in (spec("before"), spec("after"), cluster()):
        found = (await access.pages(later, [old]))[form]
        assert (found.scheme, found.token) == ("https", "a token of before")
        assert found.tls is not None
        assert found.tls.get_ca_certs() == _authority(secrets, "pair-before")

    del secrets.texts["pair-before"]
    found = (await access.pages(spec("after"), [old]))[form]
    assert found.tls is not None
    assert found.tls.get_ca_certs() == _authority(secrets, "pair-after")


def _authority(secrets: Secrets, name: str) -> list[object]:
    return list(KeyPair(secrets.texts[name]["ca.crt"]).context().get_ca_certs())


@pytest.mark.parametrize("name", ["demo-identity", "demo-operator", "demo-1-ca", "shop-app"])
async def test_what_a_cluster_lives_by_is_no_account_s(
    access: Credentials, secrets: Secrets, name: str
) -> None:
    """Law: a User cannot name the Cluster's own Secrets; its Cluster's owner could read them."""
    secrets.texts[name] = {"secret": "thirty-two bytes that others know"}
    spec = {
        "clusterRef": {"name": "mine", "namespace": "evil"},
        "secretFrom": {"secret": {"name": name, "key": "secret"}},
    }
    taker = User.model_validate(
        {"metadata": {"name": "taker-key", "namespace": "shop"}, "spec": spec}
    )
    meta = taker.metadata.model_copy(update={"name": "shop/taker-key"})
    state = DesiredState(Desired(cluster(), users=(taker.model_copy(update={"metadata": meta}),)))

    (found,) = (await access.secrets(state)).values()

    assert found == ("thirty-two bytes that others know" if name == "shop-app" else None)


async def test_the_secrets_of_many_users_leave_connections_to_others() -> None:
    """Law: Secrets of many Users are read some at a time, and all are read."""
    asked, under_way, most, broken = 0, 0, 0, False

    async def answer(request: web.Request) -> web.Response:
        nonlocal asked, under_way, most
        asked, under_way = asked + 1, under_way + 1
        most = max(most, under_way)
        for _ in range(20):
            await asyncio.sleep(0)
        under_way -= 1
        if broken:
            return web.json_response({"message": "etcd is full"}, status=500)
        data = {"key": base64.b64encode(b"a secret of the app").decode()}
        return web.json_response({"metadata": {"name": "app"}, "data": data})

    source = {"clusterRef": {"name": "demo"}, "secretFrom": {"secret": {"name": "a", "key": "key"}}}
    users = tuple(
        User.model_validate({"metadata": {"name": f"user-{number:03}"}, "spec": source})
        for number in range(100)
    )
    async with serving_api(web.get("/api/v1/namespaces/{namespace}/secrets/{name}", answer)) as api:
        access = Credentials(api, lambda: 1)
        found = await access.secrets(DesiredState(Desired(cluster(), users=users)))
        assert found == dict.fromkeys((each.metadata.name for each in users), "a secret of the app")
        assert (asked, 0 < most <= 8) == (100, True)

        broken, asked = True, 0
        with pytest.raises(RetryLaterError):
            await access.secrets(DesiredState(Desired(cluster(), users=users)))
        for _ in range(200):
            await asyncio.sleep(0)
        await access.close()

    assert asked <= 8
