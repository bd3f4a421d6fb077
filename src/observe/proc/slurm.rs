//! Whether the Slurm job that started a process still runs here. That a job has ended is a strong sign that its
//! processes are left over, of which little else tells after the fact. Apart, because every process of the machine is asked for its
//! name, and so it is done only where a process says that it is of a job.

use super::{ProcReader, handle, handle::PidDir, observer::INITIAL};
use crate::model::Process;

/// The supervisor of a step, as the kernel names it.
const SUPERVISOR: &str = "slurmstepd";

impl ProcReader {
    /// Fills in `slurm_step_alive`.
    pub(super) fn look_for_steps(&self, processes: &mut [Process]) {
        if !processes.iter().any(|p| started_by_a_step(p).is_some()) {
            return;
        }
        // Where somebody may be hidden, nobody's absence proves anything.
        let namespace = handle::namespace_inode(&self.inner.root, "self/ns/pid");
        if namespace != Some(INITIAL) || self.hides().is_some() {
            return;
        }
        let Some(running) = self.running_jobs() else { return };
        for process in processes.iter_mut().filter(|p| p.pid_namespace == namespace) {
            if let Some(job) = started_by_a_step(process) {
                process.slurm_step_alive = Some(running.contains(&job));
            }
        }
    }

    /// The jobs that have a step here; `None` if that cannot be told of one.
    fn running_jobs(&self) -> Option<Vec<String>> {
        let mut jobs = Vec::new();
        for pid in self.pids().ok()? {
            // Who could not be asked may be the supervisor of any job.
            let Some(dir) = PidDir::open(&self.inner.root, pid).ok()? else { continue };
            let comm = match handle::read(&dir, "comm", 64) {
                Err(error) if handle::gone(error) => continue,
                comm => comm.ok()?,
            };
            if String::from_utf8_lossy(&comm).trim_end() == SUPERVISOR {
                let title = handle::read(&dir, "cmdline", 4096).ok()?;
                jobs.push(job_of_title(&String::from_utf8_lossy(&title))?);
            }
        }
        Some(jobs)
    }
}

/// The job of a process that a step's supervisor started. A shell of `salloc` has the job's number too, but no node's
/// name, and may stand on a machine where no step ever runs.
fn started_by_a_step(process: &Process) -> Option<String> {
    process.environment.get("SLURMD_NODENAME")?;
    process.environment.get("SLURM_JOB_ID").cloned()
}

/// The job in `slurmstepd: [123.batch]`.
fn job_of_title(title: &str) -> Option<String> {
    let inner = title.split_once('[')?.1;
    let job: String = inner.chars().take_while(char::is_ascii_digit).collect();
    (!job.is_empty()).then_some(job)
}

#[cfg(test)]
mod tests {
    use super::job_of_title;

    #[test]
    fn titles_of_supervisors() {
        for (title, job) in [
            ("slurmstepd: [123.batch]\0", Some("123")),
            ("slurmstepd: [4567.0]", Some("4567")),
            ("slurmstepd: [9.extern]", Some("9")),
            ("slurmstepd: [12+1.0]", Some("12")),
            ("/usr/sbin/slurmstepd infinity", None),
            ("", None),
        ] {
            assert_eq!(job_of_title(title).as_deref(), job, "{title}");
        }
    }
}
