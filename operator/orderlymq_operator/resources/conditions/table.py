"""
Every reason that a condition may give, with its explanation; the table of docs/reference/conditions.md.

Rule: no other reason is written, and a reason goes when its cause goes. Tests compare this table with the docs and with
what the code writes.
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
