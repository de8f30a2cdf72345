"""
Errors of pipelines, named by the next step.

Rule: all derive from the SDK's error, so the command turns each into one sentence and an exit code.
"""

import difflib
from collections.abc import Iterable, Mapping

from orderlymq.errors import OrderlyMQError, SettingError


class OptionError(SettingError):
    """An option or a field of a spec is not allowed; the text names it and what is."""


class DataLost(OrderlyMQError):  # noqa: N818 - says what happened
    """Messages that should be read are not there any more; the text names each missing range.

    Go on with `failOnDataLoss=false`, which writes the ranges down instead.
    """


class SourceUnavailable(OrderlyMQError):  # noqa: N818 - says what happened
    """Brokers or name servers stayed away longer than `retryTimeout`; run again, nothing is lost."""


class CatalogUnavailable(OrderlyMQError):  # noqa: N818 - says what happened
    """The catalogue of an archive did not answer, or has failed; run again, nothing is lost."""


class UnorderedRows(OrderlyMQError):  # noqa: N818 - says what happened
    """The ordered sink got the rows of one key in two tasks; wrap the rows with `ordered()`."""


class CheckpointInUse(OrderlyMQError):  # noqa: N818 - says what happened
    """Another driver works on this checkpoint; stop it first or use another checkpoint."""


class StoreFailed(OrderlyMQError):  # noqa: N818 - says what happened
    """An object store refused, or did not answer in time; what is committed stays, run again when it is cured."""


class SpillFailed(OrderlyMQError):  # noqa: N818 - says what happened
    """A task of the ordered sink has no room for rows that it does not hold in memory; nothing of this try was sent."""


class SinkConflict(OrderlyMQError):  # noqa: N818 - says what happened
    """The published data contradicts the new data; nothing was changed."""


class QueueListChanged(OrderlyMQError):  # noqa: N818 - says what happened
    """The range to read was written under two queue lists of its topic, so the changes of a key have no order by offsets.

    Begin behind the expansion, with a new checkpoint and a new target.
    """


def hint(
    given: str, known: Iterable[str], shown: Mapping[str, str] | None = None, *, cutoff: float = 0.6
) -> str:
    """Return what an unknown name was meant to be, or all known ones; *shown* says how to write them."""
    names = list(known)
    near = difflib.get_close_matches(given, names, 1, cutoff)
    if near:
        return f"did you mean {shown[near[0]] if shown else near[0]}?"
    return f"known: {', '.join(shown.values() if shown else names)}"
