"""
The console of a Cluster: pages for people, in its own pod; only Kubernetes applies it.

Rule: other machines can reach it, so it does not run without accounts. `kube.objects.console` makes its objects.
"""

from typing import Annotated, Final, Self

from pydantic import ConfigDict, Field, StringConstraints, model_validator

from orderlymq_operator.resources.meta import DataKey, DnsName, Model, Name, rule, rules
from orderlymq_operator.resources.workload import ComputeRequests, Resources

HOSTS_MAX: Final = 16
_ACCOUNTS: Final = (
    "console.enabled needs console.accounts, a Secret with accounts.toml: otherwise everyone in the network "
    "could open the console"
)
# Lists of 10,000 topics and 5,000 consumer groups take less than 200 MiB.
CONSOLE_RESOURCES: Final = Resources(
    requests=ComputeRequests(cpu="20m", memory="96Mi"),
    limits=ComputeRequests(memory="512Mi"),
)


class AccountsSecret(Model):
    """The Secret that contains the accounts of the console."""

    secret_name: Name = Field(
        description="Secret with an accounts file in the form that `orderlymq console --accounts` reads: a TOML table for "
        "each name, with token and right."
    )
    key: DataKey = Field(default="accounts.toml", description="Key in the Secret.")


class ConsoleIngress(Model):
    """An Ingress in front of the console."""

    host: DnsName = Field(description="Host name under which browsers open the console.")
    class_name: Name | None = Field(
        default=None, description="IngressClass. Defaults to the cluster's default."
    )
    tls_secret_name: Name | None = Field(
        default=None,
        description="Secret with the certificate that the Ingress presents to browsers; without it the token crosses the "
        "network in clear text.",
    )
    annotations: Annotated[
        dict[
            Annotated[str, StringConstraints(min_length=1, max_length=316)],
            Annotated[str, StringConstraints(max_length=4096)],
        ],
        Field(max_length=32),
    ] = Field(default={}, description="Annotations that the Ingress controller reads.")


class Console(Model):
    """The web console, which shows what is stuck, what holds it, and what to do; only in Kubernetes."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "!has(self.enabled) || !self.enabled || has(self.accounts)",
                _ACCOUNTS,
                field=".accounts",
            )
        )
    )

    enabled: bool = Field(default=False, description="Run the console.")
    read_only: bool = Field(default=False, description="Allow no changes through the console.")
    accounts: AccountsSecret | None = Field(
        default=None, description="Accounts that may log in; required if the console is enabled."
    )
    hosts: Annotated[list[DnsName], Field(max_length=HOSTS_MAX)] = Field(
        default=[],
        description="Host names under which browsers open the console, in addition to those of its Service and its Ingress.",
    )
    ingress: ConsoleIngress | None = Field(
        default=None, description="An Ingress for the console. None by default."
    )
    resources: Resources = Field(
        default=CONSOLE_RESOURCES, description="Resources of the console's pod."
    )

    @model_validator(mode="after")
    def _has_accounts(self) -> Self:
        if self.enabled and self.accounts is None:
            raise ValueError(_ACCOUNTS)
        return self
