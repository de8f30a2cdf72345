"""
Typed bodies: what a program works with, to and from the bytes of a message.

    ORDERS = Json(Order)
    await producer.send("orders", ORDERS.encode(order), key=order.id)
    order = ORDERS.decode(message)

Rule: a body that is something else raises `BodyInvalid`, which names the message and the fields and shows no
content; in a listener or a loop it has the effect of any other error there.
"""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from orderlymq.errors import BodyInvalid
from orderlymq.message import ReceivedMessage

T = TypeVar("T")


class Json(Generic[T]):
    """JSON of a type that pydantic knows: a model, a dataclass, a TypedDict, `list[int]`."""

    def __init__(self, kind: type[T]) -> None:
        try:
            from pydantic import TypeAdapter  # noqa: PLC0415 - only programs with typed bodies pay
        except ImportError as error:
            raise ImportError(f"{error}; install it with: pip install 'orderlymq[json]'") from error
        self._kind = kind
        self._adapter: TypeAdapter[T] = TypeAdapter(kind)

    def encode(self, value: T) -> bytes:
        """Return the body of a value."""
        return self._adapter.dump_json(value)

    def decode(self, message: ReceivedMessage) -> T:
        """Return what the body says.

        Raises:
            BodyInvalid: It is no JSON of the type.
        """
        from pydantic import ValidationError  # noqa: PLC0415 - loaded already

        try:
            return self._adapter.validate_json(message.body)
        except ValidationError as error:
            told = error.errors(include_input=False, include_url=False, include_context=False)
            faults = [
                f"{'.'.join(map(str, each['loc'])) or 'body'}: {each['msg']}" for each in told
            ]
            raise _invalid(message, self._kind, "; ".join(faults)) from None


class Msgpack(Generic[T]):
    """MessagePack of a type that msgspec knows: a Struct, a dataclass, `dict[str, int]`."""

    def __init__(self, kind: type[T]) -> None:
        from msgspec import msgpack  # noqa: PLC0415 - only programs with typed bodies pay for it

        self._kind = kind
        self._encode: Callable[[Any], bytes] = msgpack.Encoder().encode
        self._decode: Callable[[bytes], T] = msgpack.Decoder(kind).decode

    def encode(self, value: T) -> bytes:
        """Return the body of a value."""
        return self._encode(value)

    def decode(self, message: ReceivedMessage) -> T:
        """Return what the body says.

        Raises:
            BodyInvalid: It is no MessagePack of the type.
        """
        from msgspec import MsgspecError  # noqa: PLC0415 - loaded already

        try:
            return self._decode(message.body)
        except MsgspecError as error:
            raise _invalid(message, self._kind, str(error)) from None


def _invalid(message: ReceivedMessage, kind: Any, why: str) -> BodyInvalid:
    return BodyInvalid(f"the body of {message!r} is no {getattr(kind, '__name__', kind)}: {why}")
