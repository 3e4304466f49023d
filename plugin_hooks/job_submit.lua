-- Example job_submit.lua: includes slurm-asrpt's module. A site with its own file copies these lines and calls
-- asrpt.job_submit last, when partition and limits stand. A missing or broken module costs a log line here; without
-- pcall slurmctld would not start. After an update of the module, touch this file: slurmctld watches only this one.
local HOOK_DIR = "/etc/slurm/asrpt"
local ok, asrpt = pcall(function() return dofile(HOOK_DIR .. "/job_submit_asrpt.lua").open(HOOK_DIR) end)
if not ok then slurm.log_error("%s", "asrpt: not loaded: " .. tostring(asrpt)) end

function slurm_job_submit(job_desc, part_list, uid)
  return ok and asrpt.job_submit(job_desc, part_list, uid) or slurm.SUCCESS
end

function slurm_job_modify(job_desc, job_rec, part_list, uid)
  return ok and asrpt.job_modify(job_desc, job_rec, part_list, uid) or slurm.SUCCESS
end
