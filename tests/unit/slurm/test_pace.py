"""How soon Slurm's scheduler starts a job that may start."""

import pytest

from slurm_asrpt.slurm.pace import pace_of


@pytest.mark.parametrize(
    ("parameters", "delay_s", "by"),
    [
        ("(null)", 3.0, "batch_sched_delay"),
        ("defer,batch_sched_delay=20,bf_interval=60", 20.0, "batch_sched_delay"),
        ("batch_sched_delay=0,sched_min_interval=2000000", 2.0, "sched_min_interval"),
        ("bf_interval=45,sched_interval=-1,batch_sched_delay=20", 45.0, "sched_interval=-1"),
        ("sched_interval=-1", 30.0, "sched_interval=-1"),
        ("batch_sched_delay=soon", 0.0, "batch_sched_delay"),
    ],
)
def test_the_parameter_that_delays_starts_most_is_found(parameters, delay_s, by):
    assert pace_of({"SchedulerParameters": parameters}) == (delay_s, by)
