"""
Every reason that a condition may give, with its explanation; the table of docs/reference/conditions.md.

Rule: the code writes no other reason, and a reason is removed with its cause. Tests compare this table with the docs
and with what the code writes.
"""

from typing import Final

from orderlymq_operator.resources.conditions import (
    backups,
    canary,
    cluster,
    consumergroup,
    pipelines,
    ready,
)

REASONS: Final = tuple(
    reason
    for room in (ready, pipelines, backups, cluster, canary, consumergroup)
    for reason in room.REASONS
)

BY_NAME: Final = {reason.name: reason for reason in REASONS}
