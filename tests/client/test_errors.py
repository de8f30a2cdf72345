"""The errors of the SDK as objects."""

import copy
import pickle

import pytest

from orderlymq import errors
from orderlymq.errors import (
    BodyUnreadable,
    BrokerError,
    OrderlyMQError,
    ReplyTimeout,
    SendRefused,
    SendUnknown,
    SettingError,
    TopicNotFound,
)
from orderlymq_protocol.body.messagequeue import MessageQueue

ERRORS = [
    BrokerError(16, "no permission", "b:10911"),
    BodyUnreadable(MessageQueue("orders", "b", 3), 7, "it is cut off"),
    SendRefused("not sent", code=2, address="b:10911"),
    SendUnknown("no answer"),
    TopicNotFound("no broker has it", topic="orders"),
    SettingError("wrong", 1),
    ReplyTimeout("nobody"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("copied", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])
def test_an_error_goes_from_process_to_process_as_it_is(
    error: OrderlyMQError, copied: object
) -> None:
    """Law: each error can be pickled, so that a worker process can report it."""
    assert callable(copied)
    found = copied(error)

    assert type(found) is type(error)
    assert (str(found), found.args, vars(found)) == (str(error), error.args, vars(error))


def test_every_error_that_takes_other_arguments_than_its_text_is_tried() -> None:
    """Law: every error with its own constructor is tested here; a new one must be added above."""
    own = {
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, OrderlyMQError) and "__init__" in vars(kind)
    }
    tried = {base for error in ERRORS for base in type(error).__mro__}
    assert own <= tried
