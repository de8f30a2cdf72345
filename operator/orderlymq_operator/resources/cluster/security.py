"""
The security profile of a Cluster: a combination of settings; a manifest that lacks one of them is refused.

Rule: a profile sets nothing by itself. It says which values other fields must have, so that a manifest shows what
applies.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal

from pydantic import Field

from orderlymq_operator.resources.meta import DataKey, Model, Name, rule

STRICT: Final = "Strict"
_TLS: Final = "security.profile Strict needs tls.mode Enforcing, with secretName (outside Kubernetes certificateFile and keyFile)"
_ACL: Final = "security.profile Strict needs config.aclEnable true, and a User for each application"
_SIGNED: Final = (
    "security.profile Strict needs config.signedAdministration true; administer with orderlymq, because mqadmin "
    "cannot sign in this way"
)
_INTERNAL: Final = (
    "security.profile Strict needs security.internalTls Enabled; it restarts each replica twice"
)
_PAGES: Final = (
    "security.pagesToken needs tls.mode Permissive or Enforcing, with secretName; a token in clear text protects "
    "nothing"
)
_NAMES: Final = (
    'security.profile Strict needs named namespaces in allowedNamespaces; write them instead of "*"'
)
_LISTENERS: Final = "security.profile Strict needs tls for each of listeners"
# The same rules for the API server.
SPEC_RULES: Final = [
    rule(
        f"self.security.profile != '{STRICT}' || self.tls.mode == 'Enforcing'",
        _TLS,
        field=".tls.mode",
    ),
    rule(
        f"self.security.profile != '{STRICT}' || self.config.aclEnable",
        _ACL,
        field=".config.aclEnable",
    ),
    rule(
        f"self.security.profile != '{STRICT}' || self.config.signedAdministration",
        _SIGNED,
        field=".config.signedAdministration",
    ),
    rule(
        f"self.security.profile != '{STRICT}' || (has(self.security.internalTls) && self.security.internalTls == 'Enabled')",
        _INTERNAL,
        field=".security.internalTls",
    ),
    rule(
        f"self.security.profile != '{STRICT}' || !self.allowedNamespaces.exists(name, name == '*')",
        _NAMES,
        field=".allowedNamespaces",
    ),
    rule(
        f"self.security.profile != '{STRICT}' || !has(self.listeners) || self.listeners.all(each, has(each.tls))",
        _LISTENERS,
        field=".listeners",
    ),
    rule(
        "!has(self.security.pagesToken) || (self.tls.mode != 'Disabled' && has(self.tls.secretName))",
        _PAGES,
        field=".security.pagesToken",
    ),
]


class InternalIssuer(Model):
    """An authority of the user for the certificates of replicas."""

    secret_name: Name = Field(
        description="Secret with tls.crt, tls.key and ca.crt of an authority, as for cert-manager's CA issuers."
    )


class PagesToken(Model):
    """The token that the HTTP pages of a Cluster require."""

    secret_name: Name = Field(description="Secret with the token, 16 to 1024 bytes of text.")
    key: DataKey = Field(default="token", description="Key in the Secret.")


class Security(Model):
    """Security of a Cluster."""

    profile: Literal["Compatible", "Strict"] = Field(
        default="Compatible",
        description="Strict requires encryption and authentication for clients, administrators and replicas, and refuses a "
        "Cluster without them: it needs tls.mode Enforcing, config.aclEnable, config.signedAdministration, "
        "security.internalTls Enabled, no * in allowedNamespaces, and tls for each of listeners. Compatible accepts what "
        "RocketMQ accepts.",
    )
    internal_tls: Literal["Enabled", "Disabled"] | None = Field(
        default=None,
        description="Mutual TLS between replicas, with certificates that the operator issues. If absent, groups that were "
        "created without it stay without it, and new groups use it. A change restarts each replica twice; only in Kubernetes.",
    )
    internal_issuer: InternalIssuer | None = Field(
        default=None,
        description="Authority that signs the certificates of replicas, instead of the Cluster's own; only in Kubernetes.",
    )
    pages_token: PagesToken | None = Field(
        default=None,
        description="Token that /status and /metrics require, as Authorization: Bearer; it needs tls. /healthz and /readyz "
        "stay open. Only in Kubernetes.",
    )


def contradictions(
    security: Security,
    *,
    tls_mode: str,
    is_tls_named: bool,
    acl: bool,
    signed: bool,
    namespaces: Sequence[Any],
    plain_listeners: Sequence[str] = (),
) -> Iterator[str]:
    """Yield the requirements of the profile that the other fields do not meet."""
    if security.pages_token is not None and (tls_mode == "Disabled" or not is_tls_named):
        yield _PAGES
    if security.profile != STRICT:
        return
    if tls_mode != "Enforcing":
        yield _TLS
    if not acl:
        yield _ACL
    if not signed:
        yield _SIGNED
    if security.internal_tls != "Enabled":
        yield _INTERNAL
    if "*" in namespaces:
        yield _NAMES
    if plain_listeners:
        yield f"{_LISTENERS}; {', '.join(plain_listeners)} has none"
