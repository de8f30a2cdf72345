"""Error of a page whose object does not exist."""


class NotThere(LookupError):  # noqa: N818 - says what it is
    """There is no such topic, group or queue; the text names it."""
