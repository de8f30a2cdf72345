"""
The secret of an account on its way from the operator to a broker; only these two can read it.

Rules: AES-256-GCM by the library `cryptography`. The key is derived from the secret of the operator's account, which
every broker of the cluster has, too. The sealed secret is bound to the account for which it is meant. So it may travel over a
connection that nothing encrypts. The library comes with the extra `kubernetes`; on one machine nothing is sealed.
"""

import base64
import binascii
import hmac
from typing import Final

#: The field of request 50 that replaces `secretKey`.
EXT_SEALED: Final = "omqSealedSecret"
#: The most bytes of an account's secret; when it is sealed, it is shorter than SEALED_LENGTH_MAX.
SECRET_SIZE_MAX: Final = 3_000
#: Longer than any sealed secret of an account.
SEALED_LENGTH_MAX: Final = 4_096

_PURPOSE: Final = b"OrderlyMQ: the secret of an account"
NONCE_SIZE: Final = 12


class SealBroken(ValueError):  # noqa: N818 - named for what was found
    """The text is not a secret that this cluster's operator has sealed, or it is for another account."""


def seal(secret: str, access_key: str, operator_secret: str, nonce: bytes) -> str:
    """Return the secret of account *access_key*, sealed, as base64; *nonce* is `NONCE_SIZE` random bytes that were never used before."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - an extra

    sealed = AESGCM(_key(operator_secret)).encrypt(nonce, secret.encode(), access_key.encode())
    return base64.b64encode(nonce + sealed).decode()


def unseal(text: str, access_key: str, operator_secret: str) -> str:
    """Return the secret that *text* holds for account *access_key*.

    Raises:
        SealBroken: the text is not sealed for this account by an operator with this secret, or this broker lacks the library.
    """
    try:
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - an extra
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415
    except ImportError as missing:
        raise SealBroken(
            "this broker cannot read sealed secrets; install orderlymq-server with cryptography"
        ) from missing
    try:
        if len(text) > SEALED_LENGTH_MAX:
            raise ValueError(
                f"it has {len(text)} characters, at most {SEALED_LENGTH_MAX} are allowed"
            )
        sealed = base64.b64decode(text.encode(), validate=True)
        nonce, rest = sealed[:NONCE_SIZE], sealed[NONCE_SIZE:]
        opened = AESGCM(_key(operator_secret)).decrypt(nonce, rest, access_key.encode())
        return opened.decode()
    except (InvalidTag, ValueError, binascii.Error) as broken:
        raise SealBroken(
            f"{EXT_SEALED} was not sealed for account {access_key} by the operator of this cluster"
        ) from broken


def _key(operator_secret: str) -> bytes:
    return hmac.digest(operator_secret.encode(), _PURPOSE, "sha256")
