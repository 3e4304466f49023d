"""HTML pages from the templates in ``templates/``. A page is one file that loads nothing and shows every value as text.

A page's Python module prepares values; its template (``NAME.html.j2``) holds the markup and extends ``base.html.j2``.
"""

from __future__ import annotations

import time
from base64 import b64encode
from bisect import bisect_left
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from slurm_asrpt.errors import printable
from slurm_asrpt.text import counted

_DAY_S = 86400


def render(template: str, **values: Any) -> str:
    """The page as text. Raises jinja2.TemplateError for a value that the template needs and ``values`` lacks."""
    return _environment().get_template(template).render(values)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("slurm_asrpt.reporting", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_printable,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    environment.filters |= {"csp_hash": _csp_hash, "duration": duration}
    environment.globals["asset"] = _asset
    return environment


def _printable(value: Any) -> Any:
    """Applied to every expression of every template, before escaping, so that no template can forget it."""
    return value if isinstance(value, Markup) else printable(str(value))


def _asset(name: str) -> Markup:
    """One of the project's scripts or style sheets, unescaped."""
    return Markup(files("slurm_asrpt.reporting").joinpath("templates", name).read_text("utf-8"))  # noqa: S704


def _csp_hash(script: str) -> str:
    """The source expression of a Content-Security-Policy that allows this script only."""
    return f"sha256-{b64encode(sha256(script.encode()).digest()).decode('ascii')}"


def utc_offsets(begin: float, end: float) -> list[tuple[float, int]]:
    """Local time minus UTC from ``begin`` to ``end``, in seconds, and since when: clocks may change in between."""
    found = [(begin, _utc_offset(begin))]
    for day in range(int(begin), int(end) + 1, _DAY_S):
        seconds, before = range(day, min(day + _DAY_S, int(end)) + 1), found[-1][1]
        if _utc_offset(seconds[-1]) != before:
            change = bisect_left(seconds, True, key=lambda at, was=before: _utc_offset(at) != was)  # type: ignore[misc]
            found.append((float(seconds[change]), _utc_offset(seconds[change])))
    return found


def _utc_offset(seconds: float) -> int:
    return time.localtime(seconds).tm_gmtoff


def jobs(number: int) -> str:
    return counted(number, "job", ",")


def duration(seconds: float | None) -> str:
    """``3.2 h``; ``-`` for None."""
    if seconds is None:
        return "-"
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"
