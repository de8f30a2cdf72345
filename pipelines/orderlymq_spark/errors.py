"""
Errors of pipelines. Each name suggests the next step.

Rule: all derive from the SDK's error, so the command turns each one into one sentence and an exit code.
"""

import difflib
from collections.abc import Iterable, Mapping

from orderlymq.errors import OrderlyMQError, SettingError


class OptionError(SettingError):
    """An option or a spec field is not allowed; the text names it and the allowed values."""


class DataLost(OrderlyMQError):  # noqa: N818 - says what happened
    """Messages that should be read no longer exist; the text names each missing range.

    With `failOnDataLoss=false` the read continues and records the missing ranges instead.
    """


class SourceUnavailable(OrderlyMQError):  # noqa: N818 - says what happened
    """Brokers or name servers were unavailable longer than `retryTimeout`; run again, nothing is lost."""


class CatalogUnavailable(OrderlyMQError):  # noqa: N818 - says what happened
    """The catalogue of an archive did not answer or failed; run again, nothing is lost."""


class UnorderedRows(OrderlyMQError):  # noqa: N818 - says what happened
    """The ordered sink received rows of one key in two tasks; wrap the rows with `ordered()`."""


class CheckpointInUse(OrderlyMQError):  # noqa: N818 - says what happened
    """Another driver uses this checkpoint; stop it first or use another checkpoint."""


class StoreFailed(OrderlyMQError):  # noqa: N818 - says what happened
    """An object store refused a request or timed out; committed data stays. Run again after fixing the cause."""


class SpillFailed(OrderlyMQError):  # noqa: N818 - says what happened
    """A task of the ordered sink has no disk space for rows that do not fit in memory; this attempt sent nothing."""


class SinkConflict(OrderlyMQError):  # noqa: N818 - says what happened
    """The published data contradicts the new data; nothing was changed."""


class QueueListChanged(OrderlyMQError):  # noqa: N818 - says what happened
    """The range to read spans two queue lists of its topic, so offsets do not show the order of a key's changes.

    Begin after the expansion, with a new checkpoint and a new target.
    """


def hint(
    given: str, known: Iterable[str], shown: Mapping[str, str] | None = None, *, cutoff: float = 0.6
) -> str:
    """Return a suggestion for an unknown name, or all known names; *shown* maps each name to its spelling in the text."""
    names = list(known)
    near = difflib.get_close_matches(given, names, 1, cutoff)
    if near:
        return f"did you mean {shown[near[0]] if shown else near[0]}?"
    return f"known: {', '.join(shown.values() if shown else names)}"
