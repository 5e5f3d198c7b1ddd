"""``python -m bench.train``; ``training.py`` does the work, so that a refusal loads no torch."""

from bench.door import train_main

if __name__ == "__main__":
    train_main()
