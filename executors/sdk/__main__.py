"""Prints the directory of the SDK: `cc -I"$(python -m ciel.executors.sdk)/c" …`."""

from pathlib import Path

if __name__ == "__main__":
    print(Path(__file__).parent.resolve())
