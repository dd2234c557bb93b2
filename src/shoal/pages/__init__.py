"""Pages and pictures for people: how they look, and where the numbers in them come from."""
