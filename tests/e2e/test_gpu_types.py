"""Jobs on nodes with several types of GPU: typed requests, and a single type for jobs that name none."""

from collections.abc import Iterator

import pytest

from slurm_asrpt.hook.tag import parse_tag

from .conftest import COMMANDS, QUICK, SOON_S, Cluster, own_cluster, wait_for

pytestmark = pytest.mark.e2e

SHORT = "sleep 1"
LONG = "sleep 600"
SPEEDS = {"h100": 2.0, "a100": 1.0}
PROFILE = "asrpt:profile=bert-large-dp4"


@pytest.fixture(scope="module")
def one_lab() -> Iterator[Cluster]:
    """n1 and n2 with four A100, n3 and n4 with four H100."""
    with own_cluster(40, nodes="2x4:a100,2x4:h100", settings={**QUICK, "gpu": {"speeds": SPEEDS}}) as cluster:
        cluster.start_daemon()
        yield cluster


def test_typed_requests_get_their_type_and_others_the_fastest_free_type(lab: Cluster):
    typed = {
        "n[1-2]": ["--gres=gpu:a100:4", "-N2"],
        "n[3-4]": ["--gpus=h100:8"],
    }
    ended = {nodes: lab.wait(lab.submit(*ask, script=SHORT), "COMPLETED").nodes for nodes, ask in typed.items()}
    assert ended == {nodes: nodes for nodes in typed}
    for ask in (["--gpus=a100:2"], ["-n2", "--gpus-per-task=a100:1"], ["--gres=gpu:a100:1"]):
        assert lab.wait(lab.submit(*ask, script=SHORT), "COMPLETED").nodes in ("n1", "n2")

    first = lab.submit("--gpus=8", script=LONG)  # the node table lists the slower nodes first
    assert lab.wait(first, "RUNNING").nodes == "n[3-4]"
    second = lab.submit("--gpus=8", script=LONG)
    assert lab.wait(second, "RUNNING").nodes == "n[1-2]"
    lab.cancel(first, second)


def test_runs_on_slower_gpus_are_shown_and_recorded_with_their_speed(lab: Cluster):
    blockers = [lab.block(name, 1) for name in ("n3", "n4")]
    job_id = lab.submit("--gpus=4", "--comment", PROFILE, script="sleep 20")
    assert lab.wait(job_id, "RUNNING").nodes in ("n1", "n2")
    wait_for(lambda: lab.state_of(job_id) == "running", "asrptd has seen it start", SOON_S)
    by_type = lab.status()[job_id]["alpha_by_type"]
    assert by_type["h100"] < by_type["a100"]
    said = lab.lab.run([COMMANDS / "asrpt-status", "--explain", job_id]).stdout
    assert f"h100 {by_type['h100']:.4g} s, a100 {by_type['a100']:.4g} s per iteration" in " ".join(said.split())
    lab.cancel(*blockers)
    ended = lab.wait(job_id, "COMPLETED")
    wait_for(lambda: lab.audit(job_id, "ended"), "the run is in the history", SOON_S)
    told = lab.audit(job_id, "ended")[0]
    assert told["alpha"] > 1.5 * told["alpha_min"]
    assert told["iterations"] == round((told["ended"] - told["began"]) / told["alpha"])
    assert parse_tag(ended.admin_comment) is not None
