"""Our own programs refuse to send a secret in the clear, so that a listener on the network cannot read it."""

import socket
from collections.abc import AsyncIterator

import pytest

from orderlymq.connection.signatures import RequestSigner
from orderlymq.errors import SettingError
from orderlymq_operator.brokers.admin import Admin, AdminError
from orderlymq_operator.plan.actions import UserConfig
from orderlymq_protocol.frame.command import request
from orderlymq_protocol.sealedsecrets import EXT_SEALED, unseal
from orderlymq_runtime.remoting.client import RemotingClient
from orderlymq_runtime.security.cleartext import SecretInClear, check_protection, stays_here
from orderlymq_runtime.security.tls import TlsFiles, following_client
from tests.operator.kube.observe.test_credentials import access, secrets
from tests.operator.scripted import serving

__all__ = ["access", "secrets"]  # fixtures

ELSEWHERE = "192.0.2.7:10911"
CONFIG = UserConfig(
    admin=False,
    default_topic_permission="DENY",
    default_group_permission="DENY",
    topics=(),
    groups=(),
    white_remote_address="",
    fingerprint="",
)


@pytest.fixture
async def plain() -> AsyncIterator[RemotingClient]:
    client = RemotingClient()
    yield client
    await client.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1", "localhost"])
def test_loopback_protects(host: str) -> None:
    """Loopback traffic does not leave the machine."""
    assert stays_here(host)


@pytest.mark.parametrize(
    "host", ["192.0.2.7", "2001:db8::7", "broker.example", "127.0.0.1.example"]
)
def test_other_addresses_protect_nothing(host: str) -> None:
    """Names are not resolved: it is not known which host would answer."""
    assert not stays_here(host)


def test_the_own_address_is_as_good_as_loopback() -> None:
    """The kernel delivers to it without a network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((ELSEWHERE.partition(":")[0], 9))
        except OSError:
            pytest.skip("this machine has no route")
        own = str(probe.getsockname()[0])

    assert stays_here(own)


def test_the_sentence_says_what_to_do() -> None:
    with pytest.raises(
        SecretInClear, match=r"the key would be sent to 192\.0\.2\.7:10911 .*: use TLS"
    ):
        check_protection(ELSEWHERE, is_encrypted=False, what="the key", cure="use TLS")
    check_protection(ELSEWHERE, is_encrypted=True, what="the key", cure="use TLS")


@pytest.mark.parametrize("access_key", ["", "shop-writer"])
def test_the_sdk_sends_no_token_in_the_clear(access_key: str) -> None:
    """With TLS or on this machine, the SDK sends the token."""
    command = request(10)

    with pytest.raises(SettingError, match="ORDERLYMQ_TLS=true"):
        RequestSigner(access_key, "secret", "token").sign(ELSEWHERE, command)
    assert "SecurityToken" not in command.ext
    RequestSigner(access_key, "secret", "token", is_encrypted=True).sign(ELSEWHERE, command)
    assert command.ext.pop("SecurityToken") == "token"
    RequestSigner(access_key, "secret", "token").sign("127.0.0.1:10911", command)
    assert command.ext["SecurityToken"] == "token"


def test_a_signature_is_no_secret() -> None:
    """Clients with an account keep sending signed requests without TLS, as RocketMQ's clients do."""
    command = request(10)

    RequestSigner("shop-writer", "secret").sign(ELSEWHERE, command)

    assert command.ext["AccessKey"] == "shop-writer"
    assert "secret" not in str(command.ext)


async def test_the_operator_sends_no_accounts_secret_in_the_clear(
    plain: RemotingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator seals the secret with that of its own account; without such an account it sends nothing."""
    monkeypatch.setattr("orderlymq_runtime.security.cleartext.stays_here", lambda _: False)
    async with serving({}) as (broker, address):
        await Admin(plain, "operator", "operators").set_user(
            address, "shop-writer", "the secret", CONFIG
        )
        with pytest.raises(AdminError, match=r"account shop-writer .* unencrypted"):
            await Admin(plain).set_user(address, "shop-writer", "the secret", CONFIG)

    ((code, ext, _),) = broker.asked
    assert (code, "secretKey" in ext) == (50, False)
    assert "the secret" not in str(ext)
    assert unseal(ext[EXT_SEALED], "shop-writer", "operators") == "the secret"


async def test_on_this_machine_accounts_are_made_without_tls(plain: RemotingClient) -> None:
    """`orderlymq up` makes accounts this way."""
    async with serving({}) as (broker, address):
        await Admin(plain).set_user(address, "shop-writer", "the secret", CONFIG)

    ((code, ext, _),) = broker.asked
    assert (code, ext["secretKey"]) == (50, "the secret")


async def test_a_client_knows_whether_it_encrypts(plain: RemotingClient) -> None:
    encrypted = RemotingClient(tls=following_client(TlsFiles()))

    assert (plain.is_encrypted, encrypted.is_encrypted) == (False, True)
    await encrypted.close()
