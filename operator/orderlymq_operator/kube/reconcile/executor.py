"""
The executor of a plan: runs the actions of one chain in order, and chains in parallel.

Rules: a failed action stops only the later actions of its chain; the next reconcile decides again. A process that does
not answer one request gets no further requests, because thousands of timeouts would delay the reconcile that finds a
new leader. Each action runs only while this operator leads, because a successor may have changed the state on which the
plan is based.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from orderlymq_operator.brokers.admin import AdminError, GroupInUseError, SilentError
from orderlymq_operator.kube.cachedstate import must_have_read
from orderlymq_operator.kube.errors import ApiError, EvictionRefusedError
from orderlymq_operator.kube.metrics import OperatorMetrics
from orderlymq_operator.kube.reconcile.backend import KubeBackend
from orderlymq_operator.plan.actions import Action, ActionChain, ReportCondition, chain_of

_log = logging.getLogger(__name__)

# Requests to brokers at the same time: a raft group commits them together, and more would only wait there.
_AT_ONCE: Final = 32


async def execute(
    backend: KubeBackend, actions: Sequence[Action], metrics: OperatorMetrics
) -> tuple[list[Exception], int]:
    """Execute *actions*; return the failures, and the number of actions done except reports.

    Failures and held pods are in the order of the plan, so that a status that names the first one stays the same.
    """
    chains: dict[ActionChain, list[Action]] = {}
    for action in actions:
        if isinstance(action, ReportCondition):
            backend.reports[action.subject] = action.condition
        else:
            chains.setdefault(chain_of(action), []).append(action)
    failed: dict[ActionChain, Exception] = {}
    held: dict[ActionChain, str] = {}
    done = 0

    async def perform(chain: ActionChain) -> None:
        nonlocal done
        for action in chains[chain]:
            # If the broker does not answer, ignore that: the deletion below sends a request again.
            with suppress(AdminError):
                if text := await backend.used_still(action):
                    backend.in_use[chain] = text
                    return
            must_have_read()
            try:
                backend.api.must_lead()
                await backend.perform(action)
            except EvictionRefusedError as refused:
                held[chain] = str(refused)  # not a failure: a later reconcile tries again
                return
            except GroupInUseError as refused:
                backend.in_use[chain] = str(refused)  # not a failure: it waits for the consumers
                return
            except (AdminError, ApiError) as error:
                if isinstance(error, SilentError):
                    backend.silent.add(error.address)
                backend.failed[chain] = str(error)
                _log.info("%s: %s", action, error)
                failed[chain] = error
                return
            _log.info("did %s", action)
            metrics.actions.labels(type(action).__name__).inc()
            done += 1

    waiting = iter(chains)

    async def perform_next() -> None:
        for chain in waiting:
            await perform(chain)

    await asyncio.gather(*(perform_next() for _ in range(min(_AT_ONCE, len(chains)))))
    backend.held += [held[chain] for chain in chains if chain in held]
    return [failed[chain] for chain in chains if chain in failed], done
