"""
Signatures that brokers with access control ask for (RocketMQ AclClientRPCHook).

The text is the values of all header fields in the order of their names, then the body; HMAC-SHA1 and
Base64 of it travel as `Signature` beside `AccessKey` (and `SecurityToken`).
"""

import hmac
from base64 import b64encode
from collections.abc import Mapping


def signed(
    ext: Mapping[str, str], body: bytes, *, access_key: str, secret_key: str, token: str
) -> dict[str, str]:
    """Return *ext* with the credentials; only the token when there is no access key."""
    fields = dict(ext)
    if token:
        fields["SecurityToken"] = token
    if not access_key:
        return fields
    fields["AccessKey"] = access_key
    text = "".join(fields[name] for name in sorted(fields)).encode() + body
    digest = hmac.digest(secret_key.encode(), text, "sha1")
    fields["Signature"] = b64encode(digest).decode()
    return fields
