"""The program `seriatim`. The package `seriatim` finds it here."""

from __future__ import annotations

from pathlib import Path


def path() -> Path:
    """Returns the path of the program."""
    return Path(__file__).resolve().parent / "seriatim"
