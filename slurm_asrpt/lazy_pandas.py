"""pandas as ``pd``, imported on first use: its import takes half of a command's start-up, and few commands need it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd
else:

    class _Pandas:
        def __getattr__(self, name: str) -> Any:
            import pandas

            return getattr(pandas, name)

    pd = _Pandas()

__all__ = ["pd"]
