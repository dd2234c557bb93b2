"""``python -m shoal`` is ``shoal``."""

from shoal.app import main

if __name__ == "__main__":
    main()
