"""Coverage of 10-90% intervals on several parts of a history: python -m benchmarks.coverage --json

The default predictor learns from the first 40, 50, 60, 70 and 80% of the jobs of a trace and is evaluated on the next
fifth, both with a single training and with a retraining every ``--retrain`` days. ``inside`` and ``width`` (the median
of the upper over the lower bound) are those of the intervals that asrptd shows when a job is submitted. These are
adjusted by the latest errors, of which there are none at the beginning of a part. ``table_inside`` and ``table_width``
are those of the table alone.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import Any

from slurm_asrpt.history.maintenance import DAY_S
from slurm_asrpt.predict.evaluation import evaluate_predictor
from slurm_asrpt.sim.predictor_evaluation import cases_of_trace
from slurm_asrpt.traces.sources import column_titles, load_trace

CUTS, PART = (0.4, 0.5, 0.6, 0.7, 0.8), 0.2
COLUMNS = ("jobs", "inside", "width", "table_inside", "table_width")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="pai-like:20000:60", help="the trace (default %(default)s)")
    parser.add_argument("--column", action="append", default=[], metavar="NAME=TITLE")
    parser.add_argument("--processors-as-gpus", action="store_true")
    parser.add_argument("--predictor", default="expected", metavar="NAME")
    parser.add_argument("--retrain", type=float, default=1.0, metavar="DAYS")
    parser.add_argument("--json", action="store_true", help="print one JSON object to stdout")
    chosen = parser.parse_args()
    columns = column_titles(chosen.column)
    trace = load_trace(chosen.data, processors_as_gpus=chosen.processors_as_gpus, columns=columns)
    cases, found = cases_of_trace(trace), list[dict[str, Any]]()
    for cut in CUTS:
        first, last = int(cut * len(cases)), round((cut + PART) * len(cases))
        for learned, every_s in (("once", None), ("rolling", chosen.retrain * DAY_S)):
            result = asdict(evaluate_predictor(chosen.predictor, cases[:last], first, every_s, 100, 0))
            found.append({"train": cut, "learned": learned} | {name: result[name] for name in COLUMNS})
            print(f"{cut} {learned}", file=sys.stderr)
    print(json.dumps({"data": chosen.data, "parts": found}) if chosen.json else "\n".join(map(str, found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
