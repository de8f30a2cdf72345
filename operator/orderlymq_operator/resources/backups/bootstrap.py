"""
Bootstrap of a new Cluster, empty or from a backup; only Kubernetes applies it.

Rule: it is set when the Cluster is created and never later, because a replica is restored once, before it has ever
served.
"""

from typing import Annotated, Final

from pydantic import Field, StringConstraints

from orderlymq_operator.resources.backups.destination import Destination
from orderlymq_operator.resources.meta import Model, set_once

LATEST: Final = "latest"
SPEC_RULES: Final = (
    set_once(
        "bootstrap",
        "a Cluster can be restored from a backup only when it is created; create a new Cluster with another name",
    ),
)


class FromBackup(Model):
    """The backup from which every replica is restored."""

    destination: Destination = Field(
        description="Where the backup is stored. The claim or the Secret must be in the namespace of the new Cluster."
    )
    backup: Annotated[
        str,
        StringConstraints(pattern=r"^(latest|[0-9]{8}T[0-9]{9}Z-[0-9a-f]{8})$", max_length=32),
    ] = Field(
        default=LATEST,
        description="Id of the backup, or `latest` for the newest one in that place if all backups there are of one cluster.",
    )


class Bootstrap(Model):
    """Source of a new Cluster's data."""

    from_backup: FromBackup = Field(
        description="Restore every replica from a backup of another Cluster before the brokers start."
    )
