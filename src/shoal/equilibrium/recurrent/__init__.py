"""The recurrent layers of networks that shoal builds, as problems and as operations."""
