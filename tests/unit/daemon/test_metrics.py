"""asrptd's metrics: their names, what they count, and that the docs and the dashboard have them all."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.metrics_core import Metric

from slurm_asrpt.daemon.metrics import Metrics
from slurm_asrpt.errors import InputError
from slurm_asrpt.forecast.calibration import Calibration
from slurm_asrpt.predict.validation import Drift
from tests.benches.daemon import Bench

ROOT = Path(__file__).parents[3]
NOT_BASE_UNITS = re.compile(r"_(milliseconds|minutes|hours|days|kilobytes|megabytes|percent)(_|$)")


@pytest.fixture
def metrics() -> Metrics:
    found = Metrics("")
    found.cycle(5.0, 0.5, {"read": 0.25, "decide": 0.25})
    found.state("enforce", 16, 4, ["running", "waiting"])
    found.leases([30.0, 20.0])
    found.drift(Drift(200, 0.75, 0.25, 0.5))
    found.calibration(Calibration(40, 0.8, 0.1, 0.1))
    return found


def collected(metrics: Metrics) -> list[Metric]:
    return list(metrics.registry.collect())


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"asrpt_{name}", labels)


def exposed_name(metric: Metric) -> str:
    """The name that Prometheus sees; for counters, the client omits the suffix."""
    return f"{metric.name}_total" if metric.type == "counter" else metric.name


def test_metric_names_follow_prometheus_conventions(metrics: Metrics) -> None:
    for metric in collected(metrics):
        assert re.fullmatch(r"asrpt(_[a-z0-9]+)+", metric.name)
        assert metric.documentation.endswith(".")
        assert not NOT_BASE_UNITS.search(metric.name)
        assert not re.search(r"_(total|sum|count|bucket|info)$", metric.name)
        assert metric.type not in metric.name.split("_")


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not on this machine (make test-packages)")
def test_promtool_accepts_the_metrics(metrics: Metrics) -> None:
    text = generate_latest(metrics.registry)
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_the_docs_list_every_metric_and_no_other(metrics: Metrics) -> None:
    told = set(re.findall(r"`(asrpt_[a-z_]+)", (ROOT / "docs" / "metrics.md").read_text()))
    assert told == {exposed_name(metric) for metric in collected(metrics)}


def queries() -> list[str]:
    board = json.loads((ROOT / "etc" / "grafana-dashboard.json").read_text())
    return [target["expr"] for panel in board["panels"] for target in panel["targets"]]


def test_the_dashboard_queries_every_metric_and_no_other(metrics: Metrics) -> None:
    there = {exposed_name(metric): metric.type for metric in collected(metrics)}
    asked = {name for query in queries() for name in re.findall(r"asrpt_[a-z_]+", query)}
    ends = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("_sum", "_count")}
    known = {f"{name}{end}" for name, kind in there.items() for end in ends.get(kind, ("",))}
    assert asked <= known
    assert {name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count") for name in asked} == set(there)


def test_dashboard_panels_have_distinct_ids_and_do_not_overlap() -> None:
    panels = json.loads((ROOT / "etc" / "grafana-dashboard.json").read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not taken & cells
        assert at["x"] + at["w"] <= 24
        taken |= cells


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not on this machine (make test-packages)")
def test_prometheus_accepts_the_queries(tmp_path: Path) -> None:
    alerts = re.findall(r"^    ((?:time|asrpt|increase).*)$", (ROOT / "docs" / "metrics.md").read_text(), re.M)
    asked = [query.replace("$__rate_interval", "5m").replace("$instance", ".*") for query in queries()]
    rules = [{"record": f"a:{at}", "expr": query} for at, query in enumerate([*asked, *alerts])]
    assert len(rules) > 30
    (tmp_path / "rules.yml").write_text(json.dumps({"groups": [{"name": "all", "rules": rules}]}))
    done = subprocess.run(["promtool", "check", "rules", tmp_path / "rules.yml"], capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr


def with_metrics(bench: Bench) -> Metrics:
    """Let new metrics count the events of the bench."""
    metrics = Metrics("")
    bench.listen = metrics.event  # type: ignore[method-assign]
    return metrics


def test_starts_runs_and_refusals_are_counted(make_bench: Any) -> None:
    bench = make_bench((4, 1, 1), policy="asrpt-gated")
    metrics = with_metrics(bench)
    bench.slurm.submit(4, 30, "flat")
    bench.cycle(3)
    bench.slurm.tick(57)
    bench.slurm.end("1")
    mapped = bench.slurm.submit(6, 100, "tail")
    bench.cycle(4)
    assert bench.job(mapped).mapped
    bench.slurm.tick(100)
    bench.slurm.end(mapped)
    refused = bench.slurm.submit(2)
    bench.slurm.errors[refused] = "no"
    bench.cycle()
    assert value(metrics, "starts_total", outcome="decided") == 3
    assert value(metrics, "starts_total", outcome="as_planned") == 2
    assert value(metrics, "write_failures_total", kind="fence") == 1
    assert value(metrics, "placement_ratio_count") == 2
    runs = bench.runs()
    spent = sum((run.end_time - run.start_time) * run.gpus for run in runs.values())
    assert value(metrics, "gpu_seconds_total") == pytest.approx(spent)
    assert value(metrics, "lost_gpu_seconds_total") == 0.0
    assert (value(metrics, "saved_gpu_seconds_total") or 0.0) > 0
    assert value(metrics, "prediction_ratio_count") == 2


def test_in_shadow_slurms_starts_are_compared_with_asrptds(make_bench: Any) -> None:
    bench = make_bench((4, 4), mode="shadow", policy="asrpt-gated")
    metrics = with_metrics(bench)
    bench.slurm.starts_jobs = False
    ours = bench.slurm.submit(4, 30, "flat", leased=False)
    bench.cycle()
    bench.slurm.tick(5)
    bench.slurm.starts_jobs = True
    bench.slurm.tick(0)
    slurms = bench.slurm.submit(4, 30, "flat", leased=False)
    bench.cycle()
    assert bench.state(ours) == bench.state(slurms) == "RUNNING"
    assert value(metrics, "shadow_starts_total", first="asrptd") == 1
    assert value(metrics, "shadow_delay_seconds_sum") == pytest.approx(6.0)
    assert value(metrics, "shadow_placement_ratio_count") == 1
    assert value(metrics, "starts_total", outcome="as_planned") == 0


def test_a_port_that_another_program_has_is_named_as_such() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(InputError) as caught:
        Metrics(f"127.0.0.1:{other.getsockname()[1]}")
    assert "(Address already in use); another program does; choose another port" in str(caught.value)
