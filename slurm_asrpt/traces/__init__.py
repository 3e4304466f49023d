"""Traces of jobs as clean columns, whatever file they come from.

Importing this package registers every format; the order of the imports is the order in which formats are tried.
"""

from slurm_asrpt.traces import canonical, pai, published, swf, sacct, csv_columns  # noqa: F401, I001
from slurm_asrpt.traces.canonical import write_trace
from slurm_asrpt.traces.registry import AUTO, check_format, formats, read_trace
from slurm_asrpt.traces.trace import COLUMNS, Trace, clean

__all__ = ["AUTO", "COLUMNS", "Trace", "check_format", "clean", "formats", "read_trace", "write_trace"]
