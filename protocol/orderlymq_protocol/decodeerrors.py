"""
The exceptions that msgspec raises for bytes that it cannot decode.

Rule: code that decodes bytes of a peer or a file with msgspec catches all of them. For text that is not UTF-8, and for
lists within lists, msgspec raises errors that are not its own.
"""

from typing import Final

import msgspec

UNREADABLE: Final = (msgspec.MsgspecError, UnicodeError, RecursionError)
