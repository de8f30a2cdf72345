"""
Volumes that grow by themselves: beyond which use, by how much, and to which size.

Rule: a volume never shrinks, so it keeps the size that it reached; `spec.storage.size` is the initial size.
"""

from typing import Annotated, Final

from pydantic import Field

from orderlymq_operator.resources.meta import Model, rule, rules
from orderlymq_operator.resources.quantities import Quantity


class AutoGrow(Model):
    """When volumes grow, by how much, and to which limit."""

    threshold: Annotated[int, Field(ge=30, le=95)] = Field(
        default=80,
        description="Disk usage of a replica in percent at which the volumes of its group grow; at most five points below "
        "config.diskMaxUsedSpaceRatio, at which sends are refused.",
    )
    step: Quantity = Field(
        default=Quantity("10Gi"),
        description="Size by which each volume of the group grows at a time.",
    )
    limit: Quantity = Field(description="Size beyond which no volume grows automatically.")


# A rule for the storage of a Cluster.
LIMIT_RULE: Final = rules(
    rule(
        "!has(self.autoGrow) || !has(self.size) || "
        "quantity(self.autoGrow.limit).compareTo(quantity(self.size)) >= 0",
        "storage.autoGrow.limit must not be below storage.size",
    )
)
