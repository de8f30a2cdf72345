"""
Whole numbers in the ranges of Java's types, and how Java reads them from text.

Rule: a number from outside is an int32 or an int64, or it is refused where it is read. Text is an optional sign
and decimal digits (`Integer.parseInt`). Python also accepts underscores and blanks; they are refused here.
"""

from typing import Annotated, Final

INT32_MIN: Final = -(2**31)
INT32_MAX: Final = 2**31 - 1
INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1

Int = Annotated[int, (INT32_MIN, INT32_MAX)]
Long = Annotated[int, (INT64_MIN, INT64_MAX)]

# A longer text is no int64, and the time to convert it grows with the square of its length.
_LENGTH_MAX: Final = 20


def read_integer(text: str, low: int = INT64_MIN, high: int = INT64_MAX) -> int:
    """Return the number in *text*.

    Raises:
        ValueError: it is not a number, or not between *low* and *high*.
    """
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not digits.isdecimal():
        raise ValueError(f"{text[:24]!r} is not a whole number")
    if len(text) > _LENGTH_MAX:
        raise ValueError(f"{text[:24]} is not between {low} and {high}")

    return in_range(int(text), low, high)


def in_range(number: int, low: int, high: int) -> int:
    """Return *number* if it is between *low* and *high*.

    Raises:
        ValueError: it is not.
    """
    if not low <= number <= high:
        raise ValueError(f"{str(number)[:24]} is not between {low} and {high}")

    return number
