"""
Administration of accounts: 50, 51, 52, 53.

The rules: names, codes and remarks are RocketMQ's (AdminBrokerProcessor, PlainAccessConfig). A change replaces
the fields that it names and keeps the others. No answer contains a secret. Accounts may be created
before access control is switched on. ``access.py`` decides who may make these requests.
"""

import hmac
from collections.abc import Iterator, Mapping
from itertools import repeat
from typing import Final

import msgspec

from orderlymq_broker.core.effects import Caller, Effect, Now
from orderlymq_broker.core.listings import filled
from orderlymq_broker.core.requestcontext import Context, RequestRefused, answer, unanswered
from orderlymq_broker.core.responses import answer_list, change, check_unchanging
from orderlymq_broker.processors.admin.access import PERMISSIONS
from orderlymq_broker.processors.admin.addresses import AddressPatternError, address_matcher
from orderlymq_broker.processors.admin.rotation import overlap_seconds, with_secret
from orderlymq_broker.state.admin.accessrecords import (
    AccountDeleted,
    AccountSet,
    Quota,
    WhiteAddressesSet,
)
from orderlymq_protocol.body import fastjson
from orderlymq_protocol.codes import ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.header.extensions import EXT_BYTES, EXT_CONNECTIONS, EXT_REQUESTS
from orderlymq_protocol.plurals import counted
from orderlymq_protocol.sealedsecrets import EXT_SEALED, SECRET_SIZE_MAX, unseal

KEY_LENGTH_MIN: Final = 6
# The same limit as in the manifest of a User. Every replica keeps the key, and so does each member that signed with it.
ACCESS_KEY_LENGTH_MAX: Final = 127
# More accounts than a person can keep track of; each costs a few hundred bytes on every replica.
ACCOUNTS_MAX: Final = 10_000
RESOURCES_MAX: Final = 1_000
# Each address is compared with the sender of every request.
ADDRESSES_MAX: Final = 100
FINGERPRINT_LENGTH: Final = 16
# The number of rights that takes as much work to show as one row of a list.
RIGHTS_IN_ONE: Final = 8
# Our own fields for the limits of a quota, and the largest value of each, which no broker comes near.
_LIMITS: Final = (
    (EXT_REQUESTS, "requests_per_s", 10**9),
    (EXT_BYTES, "bytes_per_s", 10**15),
    (EXT_CONNECTIONS, "connections", 10**9),
)
# The file in which RocketMQ keeps its accounts; its tools show the version of this file.
_FILE: Final = "plain_acl.yml"


class AccessAdministration:
    """Serves administrators' requests about accounts."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def set_account(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Serve 50: create an account, or change the named fields of an existing one."""
        check_unchanging(self._context, "account", [request.ext.get("accessKey", "")])
        try:
            account = self._read_account(request.ext, now)
        except ValueError as error:
            code = ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED
            raise RequestRefused(code, str(error)) from error

        return change(self._context, [account], request, caller)

    def delete_account(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Serve 51: delete an account."""
        key = request.ext.get("accessKey", "")
        check_unchanging(self._context, "account", [key])
        if key not in self._context.state.access.accounts:
            raise RequestRefused(
                ResponseCode.DELETE_ACL_CONFIG_FAILED,
                f"The accesskey[{key}] corresponding to accessConfig has not been deleted: "
                "there is no such account",
            )

        return change(self._context, [AccountDeleted(key)], request, caller)

    def set_white_addresses(
        self, request: RemotingCommand, caller: Caller, now: Now
    ) -> list[Effect]:
        """Serve 53: replace the addresses that need no account; the request separates them with commas."""
        texts = request.ext.get("globalWhiteAddrs", "").split(",")
        addresses = tuple(dict.fromkeys(text.strip() for text in texts if text.strip()))
        if len(addresses) > ADDRESSES_MAX:
            raise RequestRefused(
                ResponseCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED,
                f"{len(addresses)} addresses are more than the limit, {ADDRESSES_MAX}; write "
                "ranges such as 10.0.0.*",
            )
        try:
            for address in addresses:
                address_matcher(address)
        except AddressPatternError as error:
            code = ResponseCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED
            raise RequestRefused(code, str(error)) from error

        return change(self._context, [WhiteAddressesSet(addresses)], request, caller)

    def info(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Serve 52: return the version of the accounts; our own tools also get the accounts, without secrets."""
        context = self._context
        counter, timestamp = context.state.access.version.row()
        version = {"counter": counter, "stateVersion": 0, "timestamp": timestamp}
        ext = {
            "version": fastjson.dumps(version).decode(),
            "allAclFileVersion": fastjson.dumps({_FILE: version}).decode(),
            "brokerName": context.settings.group,
            "brokerAddr": context.address_for(caller),
            "clusterName": context.settings.cluster,
        }
        if request.ext.get("orderlymq") != "true":
            return answer(request, caller, ext=ext)
        kept, addresses = unanswered(request), list(context.state.access.white_addresses)
        empty = fastjson.dumps({"accounts": [], "globalWhiteAddrs": addresses})

        return answer_list(
            context,
            request,
            caller,
            filled(empty, b'"accounts":[', self._rows()),
            then=lambda body: answer(kept, caller, ext=ext, body=body),
        )

    def _rows(self) -> Iterator[dict[str, object] | None]:
        """Yield the accounts as they are shown, and a None for every few rights, because many rights are much work."""
        accounts = self._context.state.access.accounts
        for key in sorted(accounts):
            account = accounts.get(key)
            if account is None:
                continue
            rights = len(account.topic_perms) + len(account.group_perms)
            yield from repeat(None, rights // RIGHTS_IN_ONE)
            yield _shown(account)

    def _read_account(self, ext: Mapping[str, str], now: Now) -> AccountSet:
        """Return the account as the request wants it.

        Raises:
            ValueError: a field is missing or wrong, or the secret is sealed for another account or by an unknown sender.
        """
        accounts = self._context.state.access.accounts
        key = ext.get("accessKey", "")
        if key == self._context.settings.access.operator_key and key:
            raise ValueError(
                f"the account {key} belongs to the cluster's operator; choose another key"
            )
        present = accounts.get(key)
        if present is None:
            if len(accounts) + self._context.entries.pending_rows["accounts",] >= ACCOUNTS_MAX:
                raise ValueError(f"there are {ACCOUNTS_MAX} accounts already; delete one first")
            present = AccountSet(_access_key(key), "")
        sealed = ext.get(EXT_SEALED)
        operator_secret = self._context.settings.access.operator_secret
        said = ext.get("secretKey", "") if sealed is None else unseal(sealed, key, operator_secret)
        if len(said.encode(errors="surrogatepass")) > SECRET_SIZE_MAX:
            raise ValueError(f"the secretKey has more than {SECRET_SIZE_MAX} bytes")
        secret = _long_enough("secretKey", said or present.secret_key)
        present = with_secret(present, secret, overlap_seconds(ext), now.wall_ms)
        changes: dict[str, object] = {}
        if "admin" in ext:
            changes["admin"] = ext["admin"] == "true"
        for name, attribute in (
            ("defaultTopicPerm", "default_topic_perm"),
            ("defaultGroupPerm", "default_group_perm"),
        ):
            if ext.get(name):
                changes[attribute] = _permission(ext[name])
        for name, attribute in (("topicPerms", "topic_perms"), ("groupPerms", "group_perms")):
            if name in ext:
                changes[attribute] = _permissions(ext[name])
        changes["quota"] = _quota(ext, present.quota)
        if "whiteRemoteAddress" in ext:
            address_matcher(ext["whiteRemoteAddress"])
            changes["white_address"] = ext["whiteRemoteAddress"].strip()

        return msgspec.structs.replace(present, **changes)


def _shown(account: AccountSet) -> dict[str, object]:
    return {
        "accessKey": account.access_key,
        "admin": account.admin,
        "defaultTopicPerm": account.default_topic_perm,
        "defaultGroupPerm": account.default_group_perm,
        "topicPerms": account.topic_perms,
        "groupPerms": account.group_perms,
        "whiteRemoteAddress": account.white_address,
        "fingerprint": _fingerprint(account),
        "formerSecretUntil": account.former_until_ms,
        "requestsPerSecond": account.quota.requests_per_s,
        "bytesPerSecond": account.quota.bytes_per_s,
        "connections": account.quota.connections,
    }


def _fingerprint(account: AccountSet) -> str:
    """Return a text that lets a program that knows a secret check whether it is the account's secret."""
    digest = hmac.digest(account.secret_key.encode(), account.access_key.encode(), "sha256")

    return digest.hex()[:FINGERPRINT_LENGTH]


def _quota(ext: Mapping[str, str], present: Quota) -> Quota:
    """Return the quota of an account: the limits in the request, and the present ones for the others.

    Raises:
        ValueError: a limit is not a number, or is too large.
    """
    found: dict[str, int] = {}
    for name, attribute, most in _LIMITS:
        text = ext.get(name)
        if text is None:
            continue
        if not (text.isascii() and text.isdigit()) or len(text) > 19 or int(text) > most:
            raise ValueError(f"{name} must be a number from 0, which means no limit, to {most}")
        found[attribute] = int(text)

    return msgspec.structs.replace(present, **found)


def _access_key(key: str) -> str:
    if len(key) > ACCESS_KEY_LENGTH_MAX:
        raise ValueError(
            f"the accessKey has {len(key)} characters, {ACCESS_KEY_LENGTH_MAX} are allowed"
        )

    return _long_enough("accessKey", key)


def _long_enough(name: str, value: str) -> str:
    # The value itself may be a secret, so the error text does not repeat it.
    if len(value) < KEY_LENGTH_MIN:
        raise ValueError(
            f"the {name} has {counted(len(value), 'character')}; at least {KEY_LENGTH_MIN} are "
            "needed"
        )

    return value


def _permission(text: str) -> str:
    text = text.strip().upper().replace(" ", "")
    if text not in PERMISSIONS:
        raise ValueError(f"the permission {text!r} is not one of DENY, PUB, SUB, PUB|SUB")

    return text


def _permissions(text: str) -> dict[str, str]:
    """Read permissions of the form `t1=PUB,t2=SUB`."""
    found: dict[str, str] = {}
    for item in filter(None, (item.strip() for item in text.split(","))):
        name, equals, permission = item.partition("=")
        if not equals or not name.strip():
            raise ValueError(f"the permission {item!r} does not have the form name=PUB")
        found[name.strip()] = _permission(permission)
    if len(found) > RESOURCES_MAX:
        raise ValueError(
            f"{len(found)} permissions are more than the limit, {RESOURCES_MAX}; use a default "
            "permission"
        )

    return found
