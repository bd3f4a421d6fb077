//! Which batch job a process belongs to.

use crate::model::Process;

/// The Slurm job in whose control group the process stands.
pub(super) fn slurm_job(process: &Process) -> Option<u32> {
    job_of(process.cgroup.as_deref()?)
}

/// `/slurm/uid_0/job_7/step_0` (v1), `/system.slice/slurmstepd.scope/job_7/step_batch/user/task_0` (v2): a job below
/// something of Slurm's, because anybody may call his own group `job_7`.
fn job_of(path: &str) -> Option<u32> {
    let mut parts = path.split('/').skip_while(|part| !part.contains("slurm"));
    parts.next()?;
    parts.find_map(|part| part.strip_prefix("job_")?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::job_of;

    #[test]
    fn jobs_are_read_from_slurms_own_groups() {
        for (path, job) in [
            ("/slurm/uid_1000/job_7/step_0", Some(7)),
            ("/slurm_node1/uid_0/job_12/step_batch/task_0", Some(12)),
            ("/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0", Some(4711)),
            ("/system.slice/node1_slurmstepd.scope/job_8/step_0/slurm", Some(8)),
            ("/user.slice/job_7", None),
            ("/slurm/uid_0", None),
            ("/slurm/job_x", None),
            ("/", None),
        ] {
            assert_eq!(job_of(path), job, "{path}");
        }
    }
}
