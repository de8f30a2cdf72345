"""
The kind User: an account of a Cluster with access control, and its rights.

Rule: a manifest never holds a secret; it names the place of the secret. The rights are RocketMQ's: PUB to send, SUB
to consume, DENY neither; an administrator may do everything.
"""

import hashlib
import hmac
from typing import Annotated, Final, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from orderlymq_operator.resources.meta import (
    BY_NAME,
    IMMUTABLE,
    ClusterRef,
    DataKey,
    FilePath,
    KubernetesObject,
    Model,
    Name,
    Status,
    WireName,
    each_once,
    rule,
    rule_of_whole,
    rules,
    set_once,
)
from orderlymq_operator.resources.quotas import Quotas
from orderlymq_protocol.plurals import counted
from orderlymq_protocol.sealedsecrets import SECRET_SIZE_MAX

Permission = Literal["DENY", "PUB", "SUB", "PUB|SUB"]
AccessKey = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9._@-]+$", min_length=6, max_length=127)
]
RESOURCES_MAX: Final = 256
# One hour: the programs of a deployment restart one after the other, and each needs the new secret by then.
OVERLAP_S: Final = 3_600
# The maximum that brokers accept.
OVERLAP_S_MAX: Final = 30 * 24 * 3_600
FINGERPRINT_LENGTH: Final = 16
SECRET_LENGTH_MIN: Final = 6  # RocketMQ's limit
NO_SECRET: Final = (
    f"its secret cannot be read, is in a Secret that is reserved for a Cluster, is shorter than {SECRET_LENGTH_MIN} "
    f"characters, or is longer than {SECRET_SIZE_MAX} bytes"
)


class SecretKeyRef(Model):
    """A key of a Secret in the namespace of the User."""

    name: Name = Field(
        description="Name of the Secret. Names that end in -operator, -identity, -ca, -internal or -internal-tls are reserved "
        "for Clusters; the operator does not read such a Secret for a User."
    )
    key: DataKey = Field(default="secretKey", description="Key in the Secret.")


class SecretSource(Model):
    """Source of the secret; set exactly one field."""

    file: FilePath | None = Field(
        default=None,
        description="A file on the machine of `orderlymq up`; a relative path is relative to the manifest.",
    )
    env: Annotated[str, StringConstraints(min_length=1, max_length=127)] | None = Field(
        default=None, description="An environment variable of `orderlymq up`."
    )
    secret: SecretKeyRef | None = Field(default=None, description="A Secret in Kubernetes.")

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if sum(source is not None for source in (self.file, self.env, self.secret)) != 1:
            raise ValueError("set exactly one of file, env and secret")
        return self


class SecretRotation(Model):
    """How the secret of the account changes."""

    overlap_seconds: Annotated[int, Field(ge=0, le=OVERLAP_S_MAX)] = Field(
        default=OVERLAP_S,
        description="Seconds for which brokers accept the former secret in addition to the new one. 0 ends the former secret, "
        "including that of a current rotation.",
    )


class Grant(Model):
    """Rights of the account on one topic or consumer group."""

    name: WireName = Field(description="Name of the topic or consumer group that clients use.")
    permission: Permission = Field(description="PUB allows sending, SUB consuming, DENY neither.")


# Brokers keep one right per name: of two, the last would win.
Grants = Annotated[
    list[Grant],
    Field(max_length=RESOURCES_MAX, json_schema_extra=BY_NAME),
    each_once("right on", lambda each: each.name),
]


class UserSpec(Model):
    """An account and its rights."""

    cluster_ref: ClusterRef = Field(
        description="The Cluster of the account.", json_schema_extra=IMMUTABLE
    )
    access_key: AccessKey | None = Field(
        default=None,
        description="Access key with which clients sign. Defaults to metadata.name. At least 6 characters.",
        json_schema_extra=IMMUTABLE,
    )
    secret_from: SecretSource | None = Field(
        default=None,
        description="Source of the secret. If absent in Kubernetes, the operator creates one in the Secret NAME-user of the "
        "User's namespace; status.secretName names it.",
        json_schema_extra=rules(
            rule(
                "(has(self.file) ? 1 : 0) + (has(self.env) ? 1 : 0) + (has(self.secret) ? 1 : 0) == 1",
                "set exactly one of file, env and secret",
            )
        ),
    )
    secret_rotation: SecretRotation = Field(
        default=SecretRotation(), description="How the secret changes."
    )
    admin: bool = Field(
        default=False,
        description="Whether the account may do everything, including administration.",
    )
    default_topic_permission: Permission = Field(
        default="DENY", description="Right on topics that `topics` does not name."
    )
    default_group_permission: Permission = Field(
        default="DENY", description="Right on consumer groups that `groups` does not name."
    )
    topics: Grants = Field(default=[], description="Rights on topics, each named once.")
    groups: Grants = Field(default=[], description="Rights on consumer groups, each named once.")
    quotas: Quotas = Field(
        default=Quotas(), description="Limits for the account at each broker group."
    )
    white_remote_address: Annotated[str, StringConstraints(max_length=1024)] = Field(
        default="",
        description="Addresses from which the account needs no signature, such as 10.0.0.{1,2}.",
    )


class UserStatus(Status):
    """Observed state of an account."""

    secret_name: str | None = Field(
        default=None,
        description="Secret that the operator created for the account, with accessKey and secretKey.",
    )
    former_secret_until: str | None = Field(
        default=None,
        description="Time until which some broker accepts the former secret, in RFC 3339; absent if none does.",
    )


class User(KubernetesObject):
    """An account of a Cluster with access control."""

    kind: Literal["User"] = "User"
    spec: UserSpec
    status: UserStatus | None = None

    @property
    def access_key(self) -> str:
        """The name that clients sign with."""
        return self.spec.access_key or self.metadata.name

    @model_validator(mode="after")
    def _long_enough(self) -> Self:
        if len(self.access_key) < 6:
            raise ValueError(
                f"the access key {self.access_key!r} is shorter than the 6 characters that RocketMQ's "
                "clients need; set accessKey"
            )
        return self


def usable_secret(text: str) -> str | None:
    """Return the secret in *text*; None if brokers would not accept it."""
    return None if secret_trouble(text) else text.strip()


def secret_trouble(text: str) -> str:
    """Return why brokers would not accept the secret in *text*; empty if they would."""
    secret = text.strip()
    if len(secret) < SECRET_LENGTH_MIN:
        return f"has {counted(len(secret), 'character')}, fewer than {SECRET_LENGTH_MIN}"
    if len(secret.encode()) > SECRET_SIZE_MAX:
        return f"is longer than {SECRET_SIZE_MAX} bytes"
    return ""


def fingerprint(access_key: str, secret: str) -> str:
    """Return a text that changes with the secret and does not reveal it; brokers compute the same text."""
    digest = hmac.digest(secret.encode(), access_key.encode(), hashlib.sha256)
    return digest.hex()[:FINGERPRINT_LENGTH]


# The name of a User is its access key, unless the spec gives another one.
NAME_RULE: Final = rule_of_whole(
    "has(self.spec.accessKey) || self.metadata.name.size() >= 6",
    "the access key is shorter than the 6 characters that RocketMQ's clients need; set accessKey",
)
SPEC_RULES: Final = rules(set_once("accessKey"))
