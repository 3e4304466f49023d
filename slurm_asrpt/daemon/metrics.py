"""Prometheus metrics of asrptd, served where ``daemon.metrics`` says."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from threading import Thread
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, Gauge, start_http_server

from slurm_asrpt.errors import InputError
from slurm_asrpt.predict.judge import Drift

DRIFT_EVERY_S = 600.0
"""The error of predictions needs a look into the history, and changes slowly."""


class Metrics:
    """What is served at ``listen``, ADDRESS:PORT; nothing if that is empty.

    Raises InputError where it cannot listen.
    """

    def __init__(self, listen: str) -> None:
        self.registry = CollectorRegistry()
        self._cycle = self._gauge("cycle_seconds", "Duration of the last cycle.")
        self._parts = Gauge("asrpt_cycle_part_seconds", "The last cycle by part.", ["part"], registry=self.registry)
        self._jobs = Gauge("asrpt_jobs", "Jobs by state.", ["state"], registry=self.registry)
        self._error = self._gauge("prediction_error_ratio", "Mean absolute error over mean iterations, latest runs.")
        self._expected = self._gauge("prediction_expected_error_ratio", "The same of the active model when judged.")
        self._unseen = self._gauge("prediction_unseen_ratio", "Share of the latest runs without a prediction.")
        self._drifted = self._gauge("prediction_drifted", "1 if predictions err far more than expected, else 0.")
        self._next_drift = 0.0
        self._server = _serve(listen, self.registry) if listen else None

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"asrpt_{name}", text, registry=self.registry)

    def cycle(self, seconds: float, parts: Mapping[str, float]) -> None:
        """A cycle has ended. parts: its seconds by part."""
        self._cycle.set(seconds)
        for part, spent in parts.items():
            self._parts.labels(part).set(spent)

    def jobs(self, states: Iterable[str]) -> None:
        """The states of all jobs."""
        self._jobs.clear()
        for state, count in Counter(states).items():
            self._jobs.labels(state).set(count)

    def wants_drift(self, now: float) -> bool:
        """Whether the predictions' error should be measured again; then not before some minutes have passed."""
        if self._server is None or now < self._next_drift:
            return False
        self._next_drift = now + DRIFT_EVERY_S
        return True

    def drift(self, found: Drift) -> None:
        self._error.set(math.nan if found.error is None else found.error)
        self._expected.set(math.nan if found.expected is None else found.expected)
        self._unseen.set(found.unseen)
        self._drifted.set(bool(found.warning))

    def close(self) -> None:
        if self._server:
            self._server[0].shutdown()
            self._server[1].join()


def _serve(listen: str, registry: CollectorRegistry) -> tuple[WSGIServer, Thread]:
    host, _, port = listen.rpartition(":")
    try:
        return start_http_server(int(port), host.strip("[]") or "127.0.0.1", registry)
    except (OSError, ValueError, OverflowError) as error:
        raise InputError(f"daemon.metrics: {listen}: cannot listen there ({error}); use ADDRESS:PORT") from error
