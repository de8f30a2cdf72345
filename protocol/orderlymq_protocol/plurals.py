"""Numbers with their nouns, for texts that people read."""


def counted(number: int, one: str, many: str = "") -> str:
    """Return a number with its noun in singular or plural: `1 queue`, `2 queues`."""
    return f"{number} {one if number == 1 else many or f'{one}s'}"
