"""
Signatures of requests: OrderlyMQ's version 2, then RocketMQ's, which brokers with access control ask for.

RocketMQ's signature (AclClientRPCHook) covers the values of all header fields in the order of their names, then the
body. Its HMAC-SHA1 in Base64 travels as `Signature` together with `AccessKey` (and `SecurityToken`). It covers the
fields of version 2, which is in `orderlymq_protocol.signature`; RocketMQ's own brokers treat them as ordinary fields.
"""

import asyncio
import hmac
from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

from orderlymq.errors import SettingError
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.signature import ROCKETMQ_SIGNATURE
from orderlymq_runtime.remoting.signedcalls import new_signer
from orderlymq_runtime.security.cleartext import SecretInClear, check_protection

Invoke: TypeAlias = Callable[[str, RemotingCommand, float], Awaitable[RemotingCommand]]


class RequestSigner:
    """Signs the requests of one account; without an access key it only adds the token.

    A token is sent as it is, so only over TLS (*is_encrypted*) or loopback.
    """

    def __init__(
        self, access_key: str, secret_key: str, token: str = "", *, is_encrypted: bool = False
    ) -> None:
        self._is_encrypted = is_encrypted
        self._access_key = access_key
        self._secret_key = secret_key
        self._token = token
        self._signer = new_signer(access_key, secret_key.encode())

    def sign(self, address: str, command: RemotingCommand) -> None:
        """Replace any signatures of a command by those for the server at *address*.

        Raises:
            SettingError: the token would travel in the clear.
        """
        if not (self._access_key or self._token):
            return
        ext = dict(command.ext)
        ext.pop(ROCKETMQ_SIGNATURE, None)
        if self._token:
            self._check_protection(address)
            ext["SecurityToken"] = self._token
        if self._access_key:
            # Set before version 2 is signed, which covers it.
            ext["AccessKey"] = self._access_key
            ext = self._signer.sign(address, command.code, ext, command.body)
        command.ext = signed(
            ext,
            command.body,
            access_key=self._access_key,
            secret_key=self._secret_key,
            token=self._token,
        )

    def _check_protection(self, address: str) -> None:
        try:
            check_protection(
                address,
                is_encrypted=self._is_encrypted,
                what="the security token",
                cure="set use_tls=True or ORDERLYMQ_TLS=true, or sign with access_key and secret_key, which are not sent",
            )
        except SecretInClear as refused:
            raise SettingError(str(refused)) from refused

    async def invoke(
        self, send: Invoke, address: str, command: RemotingCommand, timeout_s: float
    ) -> RemotingCommand:
        """Sign a command, *send* it as `RemotingClient.invoke` does, and return the answer, with any code.

        A second try has what is left of *timeout_s* (seconds).

        Raises:
            RemotingError: There is no answer.
            SettingError: As `sign`.
        """
        loop = asyncio.get_running_loop()
        end_s = loop.time() + timeout_s
        self.sign(address, command)
        answer = await send(address, command, timeout_s)
        if answer.code and self._access_key and self._signer.learn(address, answer, command.ext):
            # The refused request was not executed: the broker began to lead after it was asked the last time.
            left_s = end_s - loop.time()
            if left_s > 0:
                self.sign(address, command)
                answer = await send(address, command, left_s)
        return answer


def signed(
    ext: Mapping[str, str], body: bytes, *, access_key: str, secret_key: str, token: str
) -> dict[str, str]:
    """Return *ext* with the credentials in RocketMQ's form; only the token if there is no access key."""
    fields = dict(ext)
    if token:
        fields["SecurityToken"] = token
    if not access_key:
        return fields
    fields["AccessKey"] = access_key
    text = "".join(fields[name] for name in sorted(fields)).encode() + body
    digest = hmac.digest(secret_key.encode(), text, "sha1")
    fields[ROCKETMQ_SIGNATURE] = b64encode(digest).decode()
    return fields
