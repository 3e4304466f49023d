"""Trouble that lasts is logged once, not in each cycle."""

from __future__ import annotations

import logging

LOG = logging.getLogger("asrptd")


class LogOnce:
    """One kind of trouble: logged when it begins or becomes another, and again when it comes back."""

    def __init__(self, level: int = logging.WARNING) -> None:
        self._level, self._text = level, ""

    def trouble(self, text: str) -> None:
        """There is trouble. text: one line."""
        if text != self._text:
            LOG.log(self._level, "%s", text)
        self._text = text

    def over(self) -> None:
        """There is none."""
        self._text = ""
