"""Numbers in sentences."""


def counted(count: int, word: str) -> str:
    """A number of things, with an s where they are not one.

    Example:
        >>> counted(1, "sample"), counted(3, "sample")
        ('1 sample', '3 samples')
    """
    return f"{count} {word}{'s' * (count != 1)}"


def memory_words(count: float) -> str:
    """Bytes in words.

    Example:
        >>> memory_words(1010), memory_words(2048)
        ('1010 B', '2 KiB')
    """
    units = iter(("B", "KiB", "MiB", "GiB"))
    unit = next(units)
    while count >= 1024 and unit != "GiB":
        count, unit = count / 1024, next(units)
    return f"{count:.0f} {unit}" if count >= 1000 else f"{count:.3g} {unit}"
