"""Sets the tag of the wheel: the oldest glibc that the program runs with. scripts/package-clients names it."""

from __future__ import annotations

import os
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Tagged(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        program = os.path.join(self.root, "src", "seriatim_bin", "seriatim")
        glibc = os.environ.get("SERIATIM_GLIBC")
        if glibc is None or not os.access(program, os.X_OK):
            raise FileNotFoundError("the program is not here; build this package with scripts/package-clients")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-manylinux_{glibc.replace('.', '_')}_x86_64"
