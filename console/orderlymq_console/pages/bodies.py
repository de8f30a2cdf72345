"""
Message bodies as text, JSON or hex, up to a limit.

Rule: a body is bytes from a stranger. It becomes text that a template escapes, and never markup. Bytes that are not
UTF-8 and control characters are shown as such, so that a body cannot look like another one.
"""

import json
import re
from typing import Final

from orderlymq_console.messagemodels import Body

#: Characters or bytes of a body that are shown in a list; the page of one message shows `WHOLE_MAX`.
SHOWN_MAX: Final = 4_096
WHOLE_MAX: Final = 65_536
#: Bytes of a body that are read: a character has at most four, and one byte more shows that the body goes on. A body of 64 KiB may inflate to 64 MiB.
READ_MAX: Final = 4 * WHOLE_MAX + 1
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+', re.DOTALL)
_HEX_WIDTH: Final = 16
FORMS: Final = ("auto", "text", "json", "hex")


def show(body: bytes, form: str, limit: int = SHOWN_MAX, size_bytes: int | None = None) -> Body:
    """Return the shown part of *body*; "auto" means JSON if it is JSON, text if it is text, otherwise hex.

    Args:
        body: the whole body, or its first `READ_MAX` bytes.
        form: how it is shown.
        limit: number of characters to show.
        size_bytes: size of the whole body, as far as it is known.
    """
    size_bytes = max(len(body), size_bytes or 0)
    shown = _show(body, form, limit)
    is_start = len(body) >= READ_MAX and size_bytes == len(body)
    return shown.model_copy(update={"size_bytes": size_bytes, "at_least": is_start})


def _show(body: bytes, form: str, limit: int) -> Body:
    if form in ("auto", "json"):
        text = _json(body, limit) if len(body) <= WHOLE_MAX else None
        if text is not None:
            return _cut("json", text, body, limit)
        if form == "json":
            form = "text"
    if form == "auto":
        form = "text" if _is_text(body[:limit]) else "hex"
    if form == "hex":
        shown = body[: limit // 4]
        return Body(form="hex", text=_hex(shown), size_bytes=len(body), cut=len(shown) < len(body))

    return _cut(
        "text", visible(body[: limit * 4].decode(errors="replace")[: limit + 1]), body, limit
    )


def _cut(form: str, text: str, body: bytes, limit: int) -> Body:
    is_cut = len(text) > limit or (form == "text" and len(body) > limit * 4)
    return Body(form=form, text=text[:limit], size_bytes=len(body), cut=is_cut)


def _json(body: bytes, limit: int) -> str | None:
    """Return a JSON body laid out in lines; None if it is not JSON. Each string and number stays as it is written."""
    if body[:1] not in (b"{", b"["):
        return None
    try:
        text = body.decode()
        json.loads(text)
    except (ValueError, RecursionError):
        return None

    return visible(_in_lines(text, limit))


def _in_lines(text: str, limit: int) -> str:
    """Lay out JSON in lines, at least *limit* characters of it."""
    parts: list[str] = []
    size = depth = 0
    before = ""
    for found in _TOKEN.finditer(text):
        part = found[0]
        if part in "}]":
            depth -= 1
            lead = "" if before in ("{", "[") else "\n" + "  " * depth
        elif before in ("{", "[", ","):
            lead = "\n" + "  " * depth
        else:
            lead = " " if before == ":" else ""
        depth += part in ("{", "[")
        parts += (lead, part)
        size += len(lead) + len(part)
        before = part
        if size > limit:
            break

    return "".join(parts)


def _is_text(body: bytes) -> bool:
    text = body.decode(errors="replace")
    odd = sum(not (char.isprintable() or char in "\n\r\t") or char == "\ufffd" for char in text)

    return odd <= len(text) // 20


def visible(text: str) -> str:
    """Return the text with control characters made visible; direction marks cannot reverse lines then."""
    return "".join(
        char if char.isprintable() or char in "\n\t" else _picture(ord(char)) for char in text
    )


def _picture(code: int) -> str:
    return chr(0x2400 + code) if code < 0x20 else f"\\u{code:04x}"


def _hex(body: bytes) -> str:
    lines = []
    for begin in range(0, len(body), _HEX_WIDTH):
        part = body[begin : begin + _HEX_WIDTH]
        text = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in part)
        lines.append(f"{begin:08x}  {part.hex(' '):<{3 * _HEX_WIDTH}} {text}")

    return "\n".join(lines)
