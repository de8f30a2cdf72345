"""
The exceptions that msgspec raises for bytes that it cannot decode.

The rule: code that decodes bytes of a peer or a file with msgspec catches all of it. Text that is no UTF-8 and lists
within lists are no errors of msgspec's own.
"""

from typing import Final

import msgspec

UNREADABLE: Final = (msgspec.MsgspecError, UnicodeError, RecursionError)
