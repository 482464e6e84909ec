"""The program `seriatim`. The package `seriatim` finds it here."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def path() -> Path:
    """Returns the path of the program."""
    return Path(__file__).resolve().parent / "seriatim"


def main() -> None:
    """Replaces this process by the program: the command `seriatim`."""
    os.execv(path(), ["seriatim", *sys.argv[1:]])
