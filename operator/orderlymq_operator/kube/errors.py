"""Errors of the API server, named by what the caller does next, and the answers that become them."""

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Final

import orjson

from orderlymq_operator.kube.resources import Json

# The API server's words for a missing right, or for granting a right that one lacks. Other refusals use other words.
_NO_RIGHT: Final = re.compile(
    r"\buser .* (cannot|is attempting to grant) ", re.IGNORECASE | re.DOTALL
)
# The cause that the API server names if a disruption budget, and not its own load, refuses.
_BUDGET: Final = "DisruptionBudget"
# Part of its message, with status 500, about a pod that several budgets select.
_BUDGETS: Final = "more than one PodDisruptionBudget"
_TOO_MANY: Final = (
    "more than one PodDisruptionBudget selects it, and Kubernetes does not evict such a pod; delete the one that is not the "
    "operator's, or change its selector so that it excludes the pods of this Cluster"
)
# Part of its message, with status 500, about an object with one key twice in a list. Later attempts would fail, too.
_NO_OBJECT: Final = "failed to create typed patch object"


class ApiError(Exception):
    """The API server refused a request; the text is the server's message.

    Attributes:
        status: HTTP status; 0 if there was no answer.
        retry_after_s: how long the server asks the client to wait.
        causes: the names of the causes in the answer.
        condition: the reason that the condition Ready of the reconciled object reports.
    """

    condition: ClassVar[str] = "ApiRefused"

    def __init__(
        self,
        text: str,
        status: int,
        reason: str = "",
        retry_after_s: float = 0,
        causes: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(text)
        self.status = status
        self.reason = reason
        self.retry_after_s = retry_after_s
        self.causes = causes

    @property
    def is_refusal(self) -> bool:
        """True if only this request was refused; others may go on. A webhook that does not answer refuses with 500."""
        return True


class RetryLaterError(ApiError):
    """No server answered, or the server is overloaded or unhealthy (429, 5xx): reconcile again."""

    @property
    def is_refusal(self) -> bool:
        """See `ApiError`; a missing answer is not a refusal."""
        return self.status == 500


class ForbiddenError(ApiError):
    """The service account lacks a right, which a person must grant."""

    condition = "Forbidden"


class DeniedError(ForbiddenError):
    """A quota or an admission rule forbids the request; no right is missing. The server's message names the rule."""

    condition = "ApiRefused"


class NameTakenError(ApiError):
    """An object of another owner has the name; the operator does not change it."""

    condition = "NameTaken"


class NotFoundError(ApiError):
    """The object or its kind does not exist (404)."""


class ConflictError(ApiError):
    """The object has changed or exists already (409): read it again."""


class EvictionRefusedError(ApiError):
    """A disruption budget does not allow an eviction now: try again later. This is not a fault."""


class BudgetsOverlapError(ApiError):
    """More than one disruption budget selects a pod, so Kubernetes never evicts it: a person must remove one."""

    condition = "BudgetsOverlap"


_REFUSALS: Final[Mapping[int, type[ApiError]]] = {
    401: ForbiddenError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
}


def error_of(status: int, text: bytes, headers: Mapping[str, Any]) -> ApiError:
    """Return the error of an answer with a *status* of 400 or more."""
    try:
        answer = json_object(text)
        sentence, reason = str(answer.get("message", "")), str(answer.get("reason", ""))
        reported = (answer.get("details") or {}).get("causes") or []
        causes = frozenset(str(cause.get("reason", "")) for cause in reported)
        # The cause contains the numbers of the disruption budget.
        more = "; ".join(str(cause.get("message", "")) for cause in reported)
    except (ValueError, AttributeError, TypeError):
        sentence, reason, causes, more = text[:200].decode(errors="replace"), "", frozenset(), ""
    sentence = sentence or f"the API server answered {status}"
    is_final = status == 500 and _NO_OBJECT in sentence
    if status in {410, 429} or (status >= 500 and not is_final):
        try:
            pause_s = float(headers.get("Retry-After", 0))
        except ValueError:
            pause_s = 0
        if _BUDGET in causes and more:
            sentence = f"{sentence.rstrip('.')}: {more}"
        return RetryLaterError(sentence, status, reason, pause_s, causes)
    kind = _REFUSALS.get(status, ApiError)
    if status == 403 and not _NO_RIGHT.search(sentence):
        kind = DeniedError
    return kind(sentence, status, reason, causes=causes)


def eviction_refusal(error: ApiError) -> ApiError | None:
    """Return what disruption budgets mean by the *error* of an eviction; None if it is not theirs."""
    if error.status == 429 and _BUDGET in error.causes:
        return EvictionRefusedError(str(error), error.status, error.reason)
    if error.status == 500 and _BUDGETS in str(error):
        return BudgetsOverlapError(_TOO_MANY, error.status, error.reason)
    return None


def json_object(text: bytes) -> Json:
    """Return the object in an answer.

    Raises:
        ValueError: the answer is not a JSON object.
    """
    found = orjson.loads(text)
    if not isinstance(found, dict):
        raise ValueError("an answer is an object")
    return found
