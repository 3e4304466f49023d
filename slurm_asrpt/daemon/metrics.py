"""Prometheus metrics of asrptd, served at ``daemon.metrics``. docs/metrics.md explains them all."""

from __future__ import annotations

import errno
import math
from collections import Counter as Tally
from collections.abc import Iterable, Mapping, Sequence
from threading import Thread
from typing import Any, TypeVar
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Summary, start_http_server
from prometheus_client.metrics import MetricWrapperBase

from slurm_asrpt.config.settings import Mode
from slurm_asrpt.errors import InputError
from slurm_asrpt.forecast.calibration import Calibration
from slurm_asrpt.predict.validation import Drift

M = TypeVar("M", bound=MetricWrapperBase)
HISTORY_INTERVAL_S = 600.0
"""Interval of metrics that are computed from the history; they change slowly."""
CALIBRATED_S = 30 * 86400
"""Period of the calibration, as in asrpt-admin calibration."""
MODES = (*(str(mode) for mode in Mode), "disabled", "unsaved")
FAILURES = {"lease-refused": "lease", "fence-refused": "fence", "hand-back-refused": "hand_back"}
_CYCLE = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
_WAIT = (1.0, 10.0, 60.0, 600.0, 3600.0, 6 * 3600.0, 86400.0, 7 * 86400.0)
_RATIO = (1.0, 1.01, 1.05, 1.1, 1.25, 1.5, 2.0, 5.0, 10.0)
_TIMES = (0.1, 0.25, 0.5, 0.8, 1.0, 1.25, 2.0, 4.0, 10.0)


class Metrics:
    """The metrics, served at ``listen`` (ADDRESS:PORT) unless that is empty. Raises InputError if it cannot listen."""

    def __init__(self, listen: str) -> None:
        self.registry = CollectorRegistry()
        self._cycle = self._make(Histogram, "cycle_duration_seconds", "Duration of cycles.", buckets=_CYCLE)
        self._phases = self._make(Summary, "cycle_phase_duration_seconds", "Cycles by phase.", ["phase"])
        self._failed = self._make(Counter, "cycle_failures_total", "Cycles that failed and were retried.")
        self._last = self._make(Gauge, "last_cycle_timestamp_seconds", "When the last cycle began.")
        self._mode = self._make(Gauge, "mode", "1 for the current mode, 0 for the others.", ["mode"])
        self._jobs = self._make(Gauge, "jobs", "Jobs by state.", ["state"])
        self._gpus = self._make(Gauge, "gpus", "GPUs that may serve jobs.")
        self._free = self._make(Gauge, "gpus_free", "GPUs that may serve jobs and are free.")
        self._leases = self._make(Gauge, "leases", "Pending jobs with a lease.")
        self._lease_left = self._make(Gauge, "lease_left_seconds", "Time until the first lease expires.")
        self._events = _Events(self._make)
        self._error = self._make(
            Gauge, "prediction_error_ratio", "Mean absolute error over mean iterations of the latest runs."
        )
        self._expected = self._make(
            Gauge, "prediction_expected_error_ratio", "The same ratio for the active model at its evaluation."
        )
        self._unseen = self._make(Gauge, "prediction_unseen_ratio", "Share of the latest runs without a prediction.")
        self._drifted = self._make(Gauge, "prediction_drifted", "1 if the error is far above the expected one, else 0.")
        self._foretold = self._make(
            Gauge, "forecast_starts_ratio", "Share of starts inside the forecast interval, or early or late.", ["where"]
        )
        self._judged = self._make(Gauge, "forecast_judged_jobs", "Forecast starts of the last 30 days.")
        self._states = set[str]()
        self._looked = -HISTORY_INTERVAL_S
        self._server = _serve(listen, self.registry) if listen else None

    def _make(self, kind: type[M], name: str, text: str, labels: Sequence[str] = (), **options: Any) -> M:
        return kind(f"asrpt_{name}", text, labels, registry=self.registry, **options)

    def cycle(self, now: float, seconds: float, phases: Mapping[str, float]) -> None:
        """Count an ended cycle that began at ``now``. phases: its seconds by phase."""
        self._last.set(now)
        self._cycle.observe(seconds)
        for phase, spent in phases.items():
            self._phases.labels(phase).observe(spent)

    def failed(self) -> None:
        """Count a failed cycle."""
        self._failed.inc()

    def event(self, event: str, facts: Mapping[str, Any]) -> None:
        """Count an event of the audit trail."""
        self._events.count(event, facts)

    def state(self, mode: str, gpus: int, free: int, states: Iterable[str]) -> None:
        """Set the mode, the GPUs that may serve jobs, the free ones of them, and the states of all jobs."""
        for each in MODES:
            self._mode.labels(each).set(each == mode)
        self._gpus.set(gpus)
        self._free.set(free)
        counts = Tally(states)
        for state, count in counts.items():
            self._jobs.labels(state).set(count)
        for state in self._states - counts.keys():  # only now: a scrape meanwhile must not find no jobs at all
            self._jobs.remove(state)
        self._states = set(counts)

    def leases(self, left_s: Sequence[float]) -> None:
        """Set the remaining seconds of each lease."""
        self._leases.set(len(left_s))
        self._lease_left.set(min(left_s, default=math.nan))

    def history_due(self, now: float) -> bool:
        """Whether the history should be read again; True at most once in HISTORY_INTERVAL_S seconds.

        And once after the clock was set back, however far.
        """
        if self._server is None or self._looked <= now < self._looked + HISTORY_INTERVAL_S:
            return False
        self._looked = now
        return True

    def drift(self, found: Drift) -> None:
        self._error.set(math.nan if found.error is None else found.error)
        self._expected.set(math.nan if found.expected is None else found.expected)
        self._unseen.set(found.unseen)
        self._drifted.set(bool(found.warning))

    def calibration(self, found: Calibration) -> None:
        self._judged.set(found.jobs)
        for where in ("inside", "early", "late"):
            self._foretold.labels(where).set(getattr(found, where) if found.jobs else math.nan)

    def close(self) -> None:
        if self._server:
            self._server[0].shutdown()
            self._server[1].join()


class _Events:
    """Counts events, from the facts of the audit trail."""

    def __init__(self, make: Any) -> None:
        self._starts = make(Counter, "starts_total", "Starts by outcome.", ["outcome"])
        self._refused = make(Counter, "write_failures_total", "Updates that Slurm refused.", ["kind"])
        self._waited = make(Histogram, "wait_duration_seconds", "From submission to start.", buckets=_WAIT)
        self._placed = make(
            Histogram, "placement_ratio", "Time per iteration over that of the best placement.", buckets=_RATIO
        )
        self._used = make(Counter, "gpu_seconds_total", "GPU time of runs that have ended.")
        self._lost = make(Counter, "lost_gpu_seconds_total", "GPU time that the best placement would have saved.")
        self._saved = make(Counter, "saved_gpu_seconds_total", "GPU time that rank maps have saved.")
        self._predicted = make(
            Histogram, "prediction_ratio", "Actual over predicted iterations of ended runs.", buckets=_TIMES
        )
        self._shadow = make(
            Histogram, "shadow_delay_seconds", "How much later Slurm started a job than asrptd decided.", buckets=_WAIT
        )
        self._shadow_place = make(
            Histogram,
            "shadow_placement_ratio",
            "Time per iteration in Slurm's placement over asrptd's.",
            buckets=_TIMES,
        )
        self._first = make(
            Counter, "shadow_starts_total", "Starts by Slurm, by which would have been first.", ["first"]
        )
        for outcome in ("decided", "as_planned", "elsewhere", "not_started"):
            self._starts.labels(outcome)
        for kind in FAILURES.values():
            self._refused.labels(kind)

    def count(self, event: str, facts: Mapping[str, Any]) -> None:
        if event == "start":
            self._starts.labels("decided").inc()
        elif event == "not-started":
            self._starts.labels("not_started").inc()
        elif event in FAILURES:
            self._refused.labels(FAILURES[event]).inc()
        elif event == "running":
            self._runs(facts)
        elif event in ("ended", "cut"):
            self._ends(facts)

    def _runs(self, facts: Mapping[str, Any]) -> None:
        alpha, best = facts["alpha"], facts["alpha_min"]
        self._waited.observe(max(0.0, facts["began"] - facts["submitted"]))
        if alpha and best:
            self._placed.observe(alpha / best)
        if facts.get("shadow"):
            self._in_shadow(facts)
        elif "as_planned" in facts:
            self._starts.labels("as_planned" if facts["as_planned"] else "elsewhere").inc()

    def _in_shadow(self, facts: Mapping[str, Any]) -> None:
        """Slurm has started a job; asrptd decided to at ``decided``, or not yet."""
        decided, planned = facts.get("decided"), facts.get("planned_alpha")
        self._first.labels("asrptd" if decided and decided <= facts["began"] else "slurm").inc()
        if decided:
            self._shadow.observe(max(0.0, facts["began"] - decided))
        if planned and facts["alpha"]:
            self._shadow_place.observe(facts["alpha"] / planned)

    def _ends(self, facts: Mapping[str, Any]) -> None:
        spent = sum(facts["gpus"].values()) * max(0.0, facts["ended"] - facts["began"])
        alpha, best, block = facts["alpha"], facts["alpha_min"], facts.get("alpha_block")
        self._used.inc(spent)
        if alpha and best and best < alpha:
            self._lost.inc(spent * (1 - best / alpha))
        if alpha and block and block > alpha:
            self._saved.inc(spent * (block / alpha - 1))
        if facts["predicted"] and facts["iterations"]:
            self._predicted.observe(facts["iterations"] / facts["predicted"])


def _serve(listen: str, registry: CollectorRegistry) -> tuple[WSGIServer, Thread]:
    host, _, port = listen.rpartition(":")
    try:
        return start_http_server(int(port), host.strip("[]") or "127.0.0.1", registry)
    except (OSError, ValueError, OverflowError) as error:
        taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        remedy = "another program does; choose another port" if taken else "use ADDRESS:PORT"
        why = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"daemon.metrics: {listen}: cannot listen there ({why}); {remedy}") from error
