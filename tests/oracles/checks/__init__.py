"""Independent checks of the reference values; each module has some."""
