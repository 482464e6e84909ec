"""Sets the tag of the wheel: the systems that the program runs on. scripts/package-clients names them."""

from __future__ import annotations

import os
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Tagged(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        program = os.path.join(self.root, "src", "seriatim_bin", "seriatim")
        platforms = os.environ.get("SERIATIM_PLATFORMS")
        if platforms is None or not os.access(program, os.X_OK):
            raise FileNotFoundError("the program is not here; build this package with scripts/package-clients")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platforms}"
