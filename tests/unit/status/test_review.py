"""What an ended job's owner is told."""

import json
from dataclasses import replace

import pytest
from slurm_asrpt_cli.status import command
from slurm_asrpt_cli.status.ended import facts_of

from slurm_asrpt.core.reasons import KINDS, Phase
from slurm_asrpt.status.document import JobStatus, Status, write_status
from slurm_asrpt.status.ended import add_ended
from slurm_asrpt.status.review import WAITED_FOR, review

JOB = JobStatus(
    job_id="7_1", name="train", user="alice", partition="gpu", gpus=8, group="a1", profile="", predicted_iterations=100,
    predicted_run_s=100.0, submit_time=1000.0, state=Phase.ENDED.value, reason="timeout", text="TIMEOUT after 00:03:20",
    facts={"waits": {"begin": 10.0, "gpus": 500.0}, "waited_s": 600.0, "ran_s": 200.0, "time_limit_s": 200.0,
           "exit_code": 0},
    nodes={"n1": 4, "n2": 4}, start_time=1600.0, end_time=1800.0, alpha=3.0, alpha_min=2.0, iterations_done=400,
)  # fmt: skip


def test_waits_prediction_placement_and_use_of_the_limit():
    said = review(JOB)
    assert said.waits == [("its turn for free GPUs", 500.0), ("its begin time", 10.0)]
    assert said.not_recorded_s == 90.0
    assert (said.runtime_ratio, said.alpha_ratio, said.limit_share, said.iterations_per_s) == (2.0, 1.5, 1.0, 2.0)
    assert said.gpu_s == 1600.0
    first, second, third = said.helps
    assert "longer time limit" in first
    assert "fewer GPUs" in second
    assert "profile" in third


@pytest.mark.parametrize(
    ("change", "helps"),
    [
        ({"reason": "completed", "nodes": {"n1": 8}, "facts": {"waits": {"gpus": 30.0}, "waited_s": 30.0}}, 0),
        ({"reason": "completed", "profile": "gpt", "facts": {"waits": {"held": 900.0}, "waited_s": 900.0}}, 0),
        ({"reason": "completed", "profile": "gpt", "predicted_iterations": 0, "facts": {"waited_s": 900.0}}, 1),
        ({"reason": "completed", "profile": "gpt", "predicted_iterations": 0, "facts": {}}, 0),
    ],
)
def test_advice_only_where_its_owner_could_have_done_something(change, helps):
    assert len(review(replace(JOB, **change)).helps) == helps


def test_no_advice_for_one_gpu_to_ask_for_fewer():
    one = replace(JOB, gpus=1, nodes={"n1": 1}, reason="completed")
    assert review(one).helps == []
    behind = replace(one, facts={**JOB.facts, "waits": {"behind": 500.0}})
    assert review(behind).helps == ["a shorter run: less predicted work goes first"]


def test_a_job_without_a_prediction_is_not_called_the_first_of_its_group():
    (text,) = review(
        replace(JOB, reason="completed", profile="gpt", predicted_iterations=0, facts={"waited_s": 90})
    ).helps
    assert text.startswith("a prediction: it had none when it was submitted")
    assert "first" not in text


def test_an_ended_job_without_a_prediction_does_not_deny_its_own_run():
    job = replace(JOB, predicted_iterations=0, predicted_run_s=None)
    assert dict(facts_of(job, review(job)))["Prediction"] == "none: no run of its group (a1) had completed before"


def test_a_job_without_gpus_needs_neither_prediction_nor_profile():
    assert review(replace(JOB, gpus=0, predicted_iterations=0, reason="completed", facts={"waited_s": 90})).helps == []


def test_facts_of_another_release_are_unknown():
    said = review(replace(JOB, facts={"waits": 7, "waited_s": "long"}, predicted_run_s=None, alpha=None))
    assert (said.waited_s, said.ran_s, said.waits, said.runtime_ratio, said.alpha_ratio) == (0.0, 0.0, [], None, None)
    assert review(replace(JOB, facts={"waits": {"new-kind": 5}})).waits == [("new-kind", 5.0)]


def test_every_kind_of_reason_has_words():
    assert set(WAITED_FOR) == set(KINDS)


@pytest.fixture
def told(tmp_path, monkeypatch, capsys):
    """Runs asrpt-status on a status without jobs, beside the ended ones; returns what it prints."""
    write_status(tmp_path, Status(0.0, "enforce", "asrpt", 5.0, 8, 8))
    (tmp_path / "asrpt.toml").write_text(f"[paths]\nrun = {json.dumps(str(tmp_path))}\n")
    monkeypatch.setenv("COLUMNS", "200")

    def run(*words, jobs=(JOB,)):
        add_ended(tmp_path, 12_345, jobs)
        with pytest.raises(SystemExit) as ended:
            command.app(["--config", str(tmp_path / "asrpt.toml"), *words])
        assert ended.value.code == 0
        return capsys.readouterr().out

    return run


def test_explain_looks_back_on_an_ended_job(told):
    lines = dict(line.split(maxsplit=1) for line in told("--explain", "7_1").splitlines() if line[0] != " ")
    assert lines["State"].startswith("TIMEOUT")
    assert lines["Waited"] == (
        "00:10:00: 00:08:20 for its turn for free GPUs, 00:00:10 for its begin time, "
        "00:01:30 before this asrptd was started"
    )
    assert lines["Ran"].startswith("00:03:20 on n[1-2]:4, from ")
    assert lines["Prediction"].endswith("it ran 2.00 times as long")
    assert lines["Iterations"] == "3 s each on these nodes, 1.50 times those of the best (2 s)"
    assert lines["Progress"] == "400 iterations, 2 per second"


@pytest.mark.parametrize(
    ("state", "code", "signal", "shown"),
    [
        ("completed", 0, 0, "COMPLETED, exit code 0"),
        ("failed", 3, 0, "FAILED, exit code 3"),
        ("failed", 0, 0, "FAILED"),
        ("failed", 0, 9, "FAILED, signal 9 (SIGKILL)"),
        ("failed", 0, 99, "FAILED, signal 99"),
        ("failed", 137, 0, "FAILED, exit code 137 (128 + signal 9, SIGKILL)"),  # as a shell says it
        ("failed", 255, 0, "FAILED, exit code 255"),
        ("node_fail", 0, 0, "NODE_FAIL: one of its nodes failed"),
        ("timeout", 0, 15, "TIMEOUT: Slurm ended it at its time limit"),
        ("out_of_memory", 0, 125, "OUT_OF_MEMORY: it used more memory than it had requested"),
        ("cancelled", 0, 15, "CANCELLED; by whom: sacct -X -j 7_1 -o State%30 (with slurmdbd)"),
    ],
)
def test_how_a_job_ended_is_said_in_slurms_words(state, code, signal, shown):
    """An exit code of 0 is said of completed jobs only, and no signal with which Slurm ended a job."""
    job = replace(JOB, reason=state, facts={"exit_code": code, "signal": signal})
    assert dict(facts_of(job, review(job)))["State"] == shown


def test_a_component_of_a_heterogeneous_job_is_found_as_squeue_writes_it(told):
    second = replace(JOB, job_id="7")
    assert told("--explain", "6+1", jobs=(second,)).startswith("Job              7 (train)")
    assert "train" in told("6+1", jobs=(second,))


def test_many_ended_tasks_of_an_array_are_summarized_by_state(told):
    tasks = [
        replace(JOB, job_id=f"8_{task}", reason="failed" if task in (3, 5) else "completed", end_time=1800.0 + task)
        for task in range(50)
    ]
    lines = dict(line.split(maxsplit=1) for line in told("--explain", "8", jobs=tasks).splitlines())
    assert lines["Tasks"] == "2 FAILED (8_3, 8_5), 48 COMPLETED (8_0, 8_1, 8_2, ...)"
    assert len(lines) <= 5
    assert len(told("8", "-P", "-n", jobs=()).splitlines()) == 50
    assert len(told("--explain", "9", jobs=[replace(JOB, job_id=f"9_{task}") for task in range(10)]).splitlines()) == 11


def test_explain_as_json_has_the_review_and_the_record(told):
    found = json.loads(told("--explain", "7_1", "--json"))
    assert (found["runtime_ratio"], found["job"]["job_id"], found["job"]["end_time"]) == (2.0, "7_1", 1800.0)


def test_an_ended_job_is_shown_by_its_number_and_by_state(told):
    other = replace(JOB, job_id="9", text="COMPLETED after 00:00:10; had waited 00:00:00")
    assert told("7_1", "--parsable", "-n", jobs=(JOB, other)).split("|")[1] == "7_1"
    assert [line.split("|")[1] for line in told("--state", "all", "-P", "-n", jobs=()).splitlines()] == ["7_1", "9"]
    assert told("--state", "waiting", "-P", "-n", jobs=()) == ""
    assert [row["job_id"] for row in json.loads(told("7", "--json", jobs=()))["jobs"]] == ["7_1"]
    assert "7_1" in told("--explain", "7", jobs=())


def test_hostile_names_are_escaped(told):
    assert "\x1b" not in told("--explain", "7_1", jobs=(replace(JOB, name="\x1b[31m", facts={"waits": {"\x1b": 9}}),))
