"""Quotas of an account or an address at each broker group: the same fields in a User and in a Cluster."""

from typing import Annotated, Final, NamedTuple, Self

from pydantic import Field, model_validator

from orderlymq_operator.resources.meta import Model, rule, rules
from orderlymq_operator.resources.quantities import Quantity

# The limits that brokers accept.
LIMIT_MAX: Final = 10**9
BYTES_MAX: Final = 10**15
_Limit = Annotated[int, Field(ge=1, le=LIMIT_MAX)] | None


class Limits(NamedTuple):
    """Quotas in the form that brokers use; 0 means no limit."""

    requests_per_s: int = 0
    bytes_per_s: int = 0
    connections: int = 0


UNLIMITED: Final = Limits()


class Quotas(Model):
    """Limits at each broker group; an absent field means no limit."""

    requests_per_second: _Limit = Field(default=None, description="Requests per second.")
    bytes_per_second: Quantity | None = Field(
        default=None,
        description="Bytes per second of requests and of delivered messages.",
        json_schema_extra=rules(
            rule(
                f"quantity(self).compareTo(quantity('{BYTES_MAX}')) <= 0",
                f"bytesPerSecond is 1 to {BYTES_MAX} bytes",
            )
        ),
    )
    connections: _Limit = Field(
        default=None, description="Number of connections that send requests."
    )

    @model_validator(mode="after")
    def _is_in_range(self) -> Self:
        size = self.bytes_per_second
        if size is not None and not 1 <= size.size_bytes <= BYTES_MAX:
            raise ValueError(f"bytesPerSecond {size} is not between 1 and {BYTES_MAX} bytes")
        return self

    def limits(self) -> Limits:
        """Return the limits in the form of brokers."""
        size = self.bytes_per_second
        return Limits(
            self.requests_per_second or 0,
            0 if size is None else size.size_bytes,
            self.connections or 0,
        )
