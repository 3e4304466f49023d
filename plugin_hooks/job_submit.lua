-- >>> slurm-asrpt: put here by asrpt-admin install --apply, taken out by asrpt-admin install --remove
-- Functions of the site's own, if there are any above, come first: partition and limits stand then, and what they refuse
-- stays refused. A missing or broken module costs a log line here; without pcall slurmctld would not start. After an
-- update of the module, touch this file: slurmctld watches only this one.
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
