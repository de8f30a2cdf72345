"""Numbers with their nouns, as texts for people say them."""


def counted(number: int, one: str, many: str = "") -> str:
    """Return a number with the noun in the form that it needs: `1 queue`, `2 queues`."""
    return f"{number} {one if number == 1 else many or f'{one}s'}"
