"""What a page raises when there is no such thing."""


class NotThere(LookupError):  # noqa: N818 - says what it is
    """There is no such topic, group or queue; the text names it."""
