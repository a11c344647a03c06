"""Prints the directory of `ciel_memory.h`: `cc -I"$(python -m ciel.memory)" …`."""

from pathlib import Path

if __name__ == "__main__":
    print(Path(__file__).parent.resolve())
