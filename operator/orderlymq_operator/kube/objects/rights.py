"""The rights of a pod in the API server: a ServiceAccount, a Role and their RoleBinding, all with one name. Pure."""

from collections.abc import Callable, Sequence

from orderlymq_operator.kube.resources import ROLE_BINDINGS, ROLES, SERVICE_ACCOUNTS, Json


def account_with_rights(
    make: Callable[..., Json], name: str, namespace: str | None, rules: Sequence[Json]
) -> list[Json]:
    """Return a ServiceAccount with the rights *rules*, its Role and RoleBinding; *make* builds an object of a kind."""
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": ROLES.kind, "name": name}
    account = {"kind": SERVICE_ACCOUNTS.kind, "name": name, "namespace": namespace}
    return [
        # A pod that needs the token mounts it by a projected volume.
        make(SERVICE_ACCOUNTS, automountServiceAccountToken=False),
        make(ROLES, rules=rules),
        make(ROLE_BINDINGS, roleRef=role, subjects=[account]),
    ]
