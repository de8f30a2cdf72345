"""Groups that are made in passing: by the first pull, lock or commit that names one, where the broker makes groups."""

from orderlymq_broker.core.requestcontext import Context, CreateFirst, RequestRefused
from orderlymq_broker.state.records import GroupSet
from orderlymq_protocol.codes import ResponseCode
from orderlymq_protocol.names import InvalidName, check_group_name


def known_group(context: Context, name: str) -> GroupSet:
    """Return a group that exists.

    Raises:
        RequestRefused: it does not, and is not made.
        CreateFirst: it is to be made.
    """
    config = context.state.groups.by_name.get(name)
    if config is None:
        raise CreateFirst(missing_group(context, name))
    return config


def missing_group(context: Context, name: str) -> GroupSet:
    """Return the record that makes a group which does not exist.

    Raises:
        RequestRefused: the name is none (1), or groups are not made in passing (26).
    """
    try:
        check_group_name(name)
    except InvalidName as error:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, str(error)) from error
    if not context.settings.auto_create_group:
        raise RequestRefused(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            f"subscription group [{name}] does not exist; create it first",
        )
    return GroupSet(name, only_if_absent=True)
