"""``python -m bench``."""

from bench.door import main

if __name__ == "__main__":
    main()
