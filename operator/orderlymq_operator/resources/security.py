"""
The security profile of a Cluster: combinations of settings that are refused when one of them is missing.

Rule: a profile sets nothing by itself. It says what the other fields must say, so that a manifest is read as it is obeyed.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal

from pydantic import Field

from orderlymq_operator.resources.meta import Model, rule

STRICT: Final = "Strict"
_TLS: Final = "security.profile Strict needs tls.mode Enforcing, with secretName (outside Kubernetes certificateFile and keyFile)"
_ACL: Final = "security.profile Strict needs config.aclEnable true, and a User for each application"
_NAMES: Final = 'security.profile Strict needs named namespaces in allowedNamespaces; write them in place of "*"'
# The same for the API server.
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
        f"self.security.profile != '{STRICT}' || !self.allowedNamespaces.exists(name, name == '*')",
        _NAMES,
        field=".allowedNamespaces",
    ),
]


class Security(Model):
    """What a Cluster promises of its security."""

    profile: Literal["Compatible", "Strict"] = Field(
        default="Compatible",
        description="Strict refuses a Cluster whose clients are not encrypted and known: it needs tls.mode "
        "Enforcing, config.aclEnable, and no * in allowedNamespaces. Compatible takes what RocketMQ takes.",
    )


def contradictions(
    security: Security, *, tls_mode: str, acl: bool, namespaces: Sequence[Any]
) -> Iterator[str]:
    """Yield what the profile needs and the other fields do not say."""
    if security.profile != STRICT:
        return
    if tls_mode != "Enforcing":
        yield _TLS
    if not acl:
        yield _ACL
    if "*" in namespaces:
        yield _NAMES
