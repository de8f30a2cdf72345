"""
`python -m orderlymq_operator.kube`: run the operator until SIGTERM or SIGINT.

Settings come from variables ORDERLYMQ_… or flags of the same name; `--help` lists them. Exit code 1 means that the
operator could not use the API server at all: start the process again.
"""

import getpass
import logging
import os
import sys
from collections.abc import Sequence

from orderlymq_operator.kube import settings
from orderlymq_operator.kube.api import Api
from orderlymq_operator.kube.app import OperatorProcess
from orderlymq_operator.kube.election import Election
from orderlymq_operator.kube.errors import ApiError
from orderlymq_operator.kube.metrics import OperatorMetrics
from orderlymq_operator.kube.reconcile.finalizers import release_everything
from orderlymq_operator.kube.settings import OperatorSettings
from orderlymq_protocol.plurals import counted
from orderlymq_runtime.process import logs
from orderlymq_runtime.process.loop import run

_log = logging.getLogger("orderlymq_operator")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the operator and return the exit code."""
    given = settings.parse(sys.argv[1:] if arguments is None else arguments)
    logs.configure(given.log_level, given.log_format, "operator")
    # kopf logs every request for a token and every object that it sees; its warnings are enough.
    logging.getLogger("kopf").setLevel(logging.WARNING)
    _name_the_user()
    try:
        return run(_release(given) if given.release else _serve(given))
    except (ApiError, OSError) as error:
        _log.error("the operator ends: %s", error)
    except ExceptionGroup:
        _log.exception("the operator ends")
    return 1


async def _serve(given: OperatorSettings) -> int:
    metrics = OperatorMetrics()
    async with await Api.connect(metrics) as api:
        await OperatorProcess(given, api, metrics).run()
    return 0


async def _release(given: OperatorSettings) -> int:
    async with await Api.connect(OperatorMetrics()) as api:
        return await release(api, given)


async def release(api: Api, given: OperatorSettings) -> int:
    """Remove the finalizers in namespaces that no operator of another release serves; return the exit code."""
    election = Election(api, given.namespace, given.identity, lambda _: None)
    if not await election.sees_others():
        return 1
    count = await release_everything(api, given.namespaces, election.is_looked_after)
    _log.info("removed the finalizer from %s", counted(count, "object"))
    return 0


def _name_the_user() -> None:
    """Set a user name for the process, because kopf needs one and a user ID without an entry in passwd has none."""
    try:
        getpass.getuser()
    except (KeyError, OSError):
        os.environ["LOGNAME"] = "orderlymq"


if __name__ == "__main__":
    sys.exit(main())
