"""A User that names no Secret gets its own, and never the contents of another owner's Secret."""

from base64 import b64decode
from collections.abc import AsyncIterator
from typing import Any

import pytest

from orderlymq_operator.kube.observe.credentials import Credentials
from orderlymq_operator.kube.observe.desired import DesiredState, desired_state
from orderlymq_operator.kube.resources import SECRETS, USERS, Json
from orderlymq_operator.plan.permissions import DriverPolicy, forbidden
from tests.operator.examples import pipeline
from tests.operator.kube.objectserver import ObjectServer
from tests.operator.kube.samples import NAMESPACE, cluster, custom, item
from tests.operator.kube.smallcluster import KEY, small_cluster

TEAM = "sales"


def state(namespace: str = TEAM, **facts: Any) -> DesiredState:
    return desired_state(
        cluster(allowedNamespaces=[TEAM]), [item("User", "shop-app", namespace, **facts)]
    )


@pytest.fixture
def server() -> ObjectServer:
    return ObjectServer()


@pytest.fixture
async def access(server: ObjectServer) -> AsyncIterator[Credentials]:
    async with server.serving() as api:
        made = Credentials(api, lambda: 1)
        yield made
        await made.close()


def text_of(secret: Json, key: str) -> str:
    return b64decode(secret["data"][key]).decode()


async def test_a_secret_is_made_once_in_the_namespace_of_the_user(
    server: ObjectServer, access: Credentials
) -> None:
    """The Secret holds what a client needs to sign, and is deleted with the User."""
    first = await access.secrets(state())
    again = await access.secrets(state())

    made = server.find(SECRETS, TEAM, "shop-app-user")
    assert made is not None
    assert first == again == {f"{TEAM}/shop-app": text_of(made, "secretKey")}
    assert text_of(made, "accessKey") == "shop-app"
    assert len(text_of(made, "secretKey")) == 64
    (owner,) = made["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == (
        "User",
        "shop-app",
        f"uid-{TEAM}-shop-app",
    )
    assert server.find(SECRETS, NAMESPACE, "shop-app-user") is None


async def test_two_users_of_one_name_have_two_secrets(
    server: ObjectServer, access: Credentials
) -> None:
    """A User with the same name in another namespace does not learn the secret."""
    own, theirs = await access.secrets(state(NAMESPACE)), await access.secrets(state())

    assert set(own.values()).isdisjoint(theirs.values())


async def test_a_secret_that_was_not_made_for_the_user_is_not_read(
    server: ObjectServer, access: Credentials
) -> None:
    """Otherwise the account would be as public as that Secret, or the text of that Secret would become a password."""
    foreign = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "shop-app-user", "namespace": TEAM},
        "stringData": {"secretKey": "somebody-else-s"},
    }
    server.put(SECRETS, foreign)

    assert await access.secrets(state()) == {f"{TEAM}/shop-app": None}


async def test_a_stranger_gets_no_secret(server: ObjectServer, access: Credentials) -> None:
    """A User that the Cluster does not allow gets no Secret."""
    assert await access.secrets(state("evil")) == {}
    assert server.find(SECRETS, "evil", "shop-app-user") is None


async def test_the_status_names_the_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """The status names the Secret that was made, and no Secret if the User names its own."""
    async with small_cluster(monkeypatch.setattr) as world:
        named = {"secretFrom": {"secret": {"name": "mine"}}}
        world.server.put(USERS, custom("User", "shop-app"))
        world.server.put(USERS, custom("User", "other-app", spec=named))

        for _ in range(3):
            await world.reconciler.reconcile(KEY)

        made = world.server.find(USERS, NAMESPACE, "shop-app")
        other = world.server.find(USERS, NAMESPACE, "other-app")
        assert made is not None
        assert other is not None
        assert made["status"]["secretName"] == "shop-app-user"
        assert "secretName" not in other["status"]


def test_a_pipeline_may_sign_with_it() -> None:
    """The Secret belongs to an application, not to the Cluster."""
    env = [{"name": "ORDERS_SECRET_KEY", "secret": {"name": "shop-app-user", "key": "secretKey"}}]

    assert forbidden(pipeline(env=env), DriverPolicy("spark:1"), [cluster()]) is None
