"""From a trace to a simulation: sizes, load, and predictions without knowledge of the future."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from slurm_asrpt.profile.documents import load_uncut
from slurm_asrpt.sim.description import Cluster, Options
from slurm_asrpt.sim.workload import build, offered_load
from slurm_asrpt.traces import clean
from slurm_asrpt.traces.synthetic import pai_like


def frame(**columns: object) -> pd.DataFrame:
    return pd.DataFrame({"job_id": ["a", "b", "c", "d"], "gpus": 1, "user": "u", "group": "g", **columns})


def test_predictions_use_only_jobs_that_ended_before_the_first_simulated_job() -> None:
    trace = clean("t", frame(submit_s=[0, 10, 20, 30], duration_s=[5, 1000, 70, 90]))
    workload = build(trace, Cluster(2), Options(models="none", history=0.5, predictor="mean"))
    assert workload.table.predicted.tolist() == [5, 5]  # not (5 + 1000) / 2: the second job still ran at 20


def test_an_unseen_group_is_predicted_zero_iterations() -> None:
    trace = clean("t", frame(submit_s=[0, 10, 20, 30], duration_s=[5, 5, 7, 9], group=["g", "g", "g", "h"]))
    workload = build(trace, Cluster(2), Options(models="none", history=0.5, predictor="median"))
    assert workload.table.predicted.tolist() == [5, 0]


def test_the_load_is_as_requested() -> None:
    workload = build(pai_like(4000), options=Options(load=1.3))
    assert offered_load(workload.table, workload.cluster) == pytest.approx(1.3)


def test_iterations_are_the_run_time_over_the_best_iteration_time() -> None:
    trace = pai_like(2000)
    workload = build(trace, options=Options(history=0.0, predictor="perfect"))
    alphas = workload.table.best_alphas(workload.cluster.nodes, workload.cluster.fabric)
    np.testing.assert_allclose(workload.table.iterations * alphas, trace.jobs["duration_s"])


@pytest.mark.parametrize("share", [0.0, 0.4, 0.8])
def test_the_share_of_single_gpu_jobs_can_be_set(share: float) -> None:
    table = build(pai_like(20_000), options=Options(history=0.0, single_gpu=share, predictor="perfect")).table
    assert (table.gpus == 1).mean() == pytest.approx(share, abs=0.03)


def test_jobs_of_one_group_and_size_run_the_same_model() -> None:
    table = build(pai_like(5000), options=Options(history=0.0, predictor="perfect")).table
    assert (pd.DataFrame({"g": table.groups, "p": table.profile}).groupby("g")["p"].nunique() == 1).all()


def test_measured_models_have_the_same_shapes_and_other_times() -> None:
    computed, measured = (build(pai_like(2000), options=Options(models=models)) for models in ("table1", "h100"))
    assert [p.gpus for p in computed.table.profiles] == [p.gpus for p in measured.table.profiles]
    for one, two in zip(computed.table.profiles, measured.table.profiles, strict=True):
        model, _, shape = one.name.rpartition("-")
        assert two.name == f"{model}-h100-{shape}"
        assert [stage.replicas for stage in one.stages] == [stage.replicas for stage in two.stages]
    whole = next(profile for profile in measured.table.profiles if profile.name == "vgg19-h100-1gpu")
    blocks = load_uncut("vgg19-h100", ()).blocks
    assert whole.stages[0].forward_s == pytest.approx(sum(block.forward_s for block in blocks))


@pytest.mark.parametrize(
    "wrong", [{"models": "x"}, {"predictor": "x"}, {"single_gpu": 1.5}, {"history": 1.0}, {"load": 0.0}]
)
def test_invalid_workload_options_are_rejected(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"must be|between|history|load"):
        Options(**wrong)  # type: ignore[arg-type]


def test_invalid_rows_are_counted_by_their_first_error() -> None:
    raw = pd.DataFrame(
        {
            "job_id": ["a", "b", "c", "d", "e", "f", "a", ""],
            "submit_s": [5, None, 3, 4, 5, 6, 7, 8],
            "gpus": [1, 1, 0, "x", 1, 2.5, 1, 1],
            "duration_s": [10, 10, 10, 10, -1, 10, 10, 10],
        }
    )
    trace = clean("t", raw)
    assert len(trace) == 1
    assert trace.rows == 8
    assert sum(trace.left_out.values()) == 7
    assert trace.left_out["negative run time"] == 1
    assert trace.left_out["job id repeated"] == 1
    assert trace.jobs["submit_s"].tolist() == [0]


def test_servers_are_under_switches_in_the_order_of_the_node_table() -> None:
    cluster = Cluster(7, 8, switches=(2, 2), beyond_gbit=(5.0, 2.5))
    assert [node.switches for node in cluster.nodes[1:5]] == [
        ("s1-0", "s2-0"), ("s1-1", "s2-0"), ("s1-1", "s2-0"), ("s1-2", "s2-1"),
    ]  # fmt: skip
    assert [cluster.fabric.through(level) * 8e-9 for level in (1, 2, 3, 4)] == [10.0, 5.0, 2.5, 2.5]
    with pytest.raises(ValueError, match="a switch connects at least 1"):
        Cluster(4, switches=(0,))
    with pytest.raises(ValueError, match="the number of servers under each"):
        Cluster(4, beyond_gbit=(1.0,))
