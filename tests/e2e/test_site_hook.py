"""A site whose own job_submit.lua sets AdminComment."""

import pytest

from .conftest import SOON_S, own_cluster, wait_for

pytestmark = pytest.mark.e2e

CALL = "return asrpt.job_submit(d, p, u) end"
BEFORE = f'd.admin_comment = "site:42"; {CALL}'
AFTER = 'local rc = asrpt.job_submit(d, p, u); d.admin_comment = "site:42"; return rc end'


def test_what_a_sites_hook_writes_is_kept_and_a_job_whose_tag_it_overwrites_is_handed_to_slurm_at_once():
    settings = {"daemon": {"interval_s": 0.5, "lease_s": 600}}
    with own_cluster(140, "1x4", settings) as asrpt:
        asrpt.start_daemon()
        script = asrpt.lab.paths.etc / "job_submit.lua"
        plain = script.read_text()

        def submitted(call: str) -> str:
            script.write_text(plain.replace(CALL, call))
            asrpt.lab.restart_slurmctld()
            return asrpt.submit("--gpus=1", script="sleep 3")

        both = submitted(BEFORE)
        assert asrpt.job(both).admin_comment.startswith("site:42 asrpt1:g=")
        asrpt.wait(both, "COMPLETED")
        wait_for(lambda: asrpt.audit(both, "ended"), "asrptd has started it and seen its end", 10)
        assert asrpt.audit(both, "start")
        overwritten = submitted(AFTER)
        wait_for(lambda: asrpt.audit(overwritten, "left"), "it is left", 20)
        assert asrpt.audit(overwritten, "left")[0]["why"] == "untagged"
        job = asrpt.wait(overwritten, "COMPLETED")
        assert job.start_time - job.submit_time < SOON_S
