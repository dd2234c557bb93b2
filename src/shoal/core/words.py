"""Numbers in sentences."""


def counted(count: int, word: str) -> str:
    """A number of things, with an s where they are not one.

    Example:
        >>> counted(1, "sample"), counted(3, "sample")
        ('1 sample', '3 samples')
    """
    return f"{count} {word}{'s' * (count != 1)}"
