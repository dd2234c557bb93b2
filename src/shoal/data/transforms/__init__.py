"""What is done to samples and labels: their form, scale, classes, and which are taken."""

__all__: list[str] = []
