-- >>> slurm-asrpt: put here by asrpt-admin install --apply, taken out by asrpt-admin install --remove
-- The site's own functions above, if any, run first: they set partition and limits, and a job that they reject stays
-- rejected. A missing or broken module only logs a line; without pcall, slurmctld would not start. After an update of
-- the module, touch this file: slurmctld watches no other.
do
  local SCRIPTS, HOOK = "/etc/slurm/asrpt", "/var/lib/asrpt-hook"
  local ok, asrpt = pcall(function() return dofile(SCRIPTS .. "/job_submit_asrpt.lua").open(HOOK) end)
  if not ok then slurm.log_error("%s", "asrpt: not loaded: " .. tostring(asrpt)) end
  local site_submit, site_modify = slurm_job_submit, slurm_job_modify

  function slurm_job_submit(job_desc, part_list, uid)
    local answer = slurm.SUCCESS
    if site_submit then answer = site_submit(job_desc, part_list, uid) end
    if ok and (answer == slurm.SUCCESS or answer == nil) then asrpt.job_submit(job_desc, part_list, uid) end
    return answer
  end

  function slurm_job_modify(job_desc, job_rec, part_list, uid)
    if site_modify then return site_modify(job_desc, job_rec, part_list, uid) end
    return slurm.SUCCESS
  end
end
-- <<< slurm-asrpt
