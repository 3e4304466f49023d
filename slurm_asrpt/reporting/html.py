"""What the HTML files share: one page with everything in it, which loads nothing, every text escaped; and words."""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from html import escape
from typing import Any

from slurm_asrpt.errors import printable
from slurm_asrpt.text import counted

_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
_HEAD = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="POLICY">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>TITLE</title>
<style>
:root { color-scheme: light; }
body { margin: 0 auto; padding: 1.5rem; max-width: 74rem; background: #fff; color: #1b1b1b;
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .5rem; }
h2 { font-size: 1.2rem; margin: 2.2rem 0 .4rem; }
h3 { font-size: 1rem; margin: 1.2rem 0 .3rem; }
p { margin: .3rem 0 .8rem; max-width: 48rem; }
ul { max-width: 48rem; }
img { width: 100%; height: auto; }
svg { max-width: min(100%, 60rem); height: auto; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .8rem; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .55rem .25rem 0; text-align: right; border-bottom: 1px solid #e3e3e3; white-space: nowrap; }
th { border-bottom: 2px solid #999; vertical-align: bottom; white-space: normal; }
th.text, td.text { text-align: left; }
td.long { white-space: normal; min-width: 20rem; overflow-wrap: anywhere; }
tr.real { background: #f2f2f2; font-weight: bold; }
.note { color: #555; font-size: .9rem; }
.warn { border-left: 4px solid #D55E00; padding-left: .7rem; }
@media (max-width: 60rem) { table { font-size: .72rem; } }
STYLE</style>
</head>
<body>
"""


def head(title: str, script: str = "", style: str = "") -> str:
    """Everything before the page's own parts. script: the only one that may run; style: rules beside the common ones.

    Both are ours: nothing from outside belongs in them.
    """
    allowed = f"; script-src 'sha256-{b64encode(sha256(script.encode()).digest()).decode('ascii')}'" if script else ""
    return _HEAD.replace("POLICY", _POLICY + allowed).replace("STYLE", style).replace("TITLE", text(title))


def text(value: Any) -> str:
    """For HTML: control characters shown as escapes, markup as text."""
    return escape(printable(str(value)))


def table(titles: str, rows: str) -> str:
    """titles: cells of the first row; rows: whole rows. It scrolls where it is too wide."""
    return f'<div class="wide"><table>\n<tr>{titles}</tr>\n{rows}</table></div>\n'


def jobs(number: int) -> str:
    return counted(number, "job", ",")


def duration(seconds: float | None) -> str:
    """``3.2 h``; ``-`` where not known."""
    if seconds is None:
        return "-"
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"
