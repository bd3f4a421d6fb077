//! A Slurm job as a person names it, and who is of it. Processes carry the number of their own that Slurm gives each task
//! of an array and each part of a heterogeneous job, not the name that people use for these; and what a process says of
//! its array may be left over from the job that submitted it. So such a name is answered with the number to use instead.

use super::targets::{Claim, Found, World, command};
use crate::{
    error::hinted,
    judge::place_of,
    model::{Observer, Process},
    observe::proc::ProcReader,
    text,
};

/// A job, by its number or its SLUID.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job(String);

/// What a person may write for one.
enum Named<'a> {
    Job,
    /// `104_2`, `104+1`: the variables that say so, and the two numbers.
    Part(&'static str, [&'static str; 2], [&'a str; 2]),
    /// `104.0`, and the job's number.
    Step(&'a str),
    Nothing,
}

fn read(name: &str) -> Named<'_> {
    let number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let sluid = name.len() == 14 && name.starts_with('s') && name.bytes().all(|b| b.is_ascii_alphanumeric());
    let array = ["SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"];
    let parts = ["SLURM_HET_JOB_ID", "SLURM_HET_JOB_OFFSET"];
    match (name.split_once('_'), name.split_once('+'), name.split_once('.')) {
        _ if number(name) || sluid => Named::Job,
        (Some((job, task)), ..) if number(job) && number(task) => Named::Part("task of an array", array, [job, task]),
        (_, Some((job, at)), _) if number(job) && number(at) => {
            Named::Part("part of a heterogeneous job", parts, [job, at])
        }
        (.., Some((job, step))) if number(job) && !step.is_empty() => Named::Step(job),
        _ => Named::Nothing,
    }
}

impl Job {
    /// The job that this names.
    ///
    /// # Errors
    /// If it names none, or no whole one: then how to name it.
    pub fn read(name: &str, reader: &ProcReader) -> anyhow::Result<Self> {
        let shown = text::clean(name);
        match read(name) {
            Named::Job => Ok(Self(name.to_owned())),
            Named::Step(job) => Err(hinted(
                format!("{shown} is a step of a job, and steps are not ended one by one"),
                format!("the whole job: gpuresid reclaim --job {job}; one process: gpuresid reclaim --pid PID"),
            )),
            Named::Nothing => Err(hinted(
                format!("{shown} is no number of a Slurm job"),
                "write the number alone, as in: gpuresid reclaim --job 1234; `squeue -u $USER` lists yours",
            )),
            Named::Part(what, variables, values) => Err(hinted(
                format!("{shown} is a {what}, and Slurm gives each a job number of its own: use that"),
                who_says_so(reader, variables, values).unwrap_or_else(|| {
                    format!("squeue -h -j {name} -o %A prints it; then: gpuresid reclaim --job NUMBER")
                }),
            )),
        }
    }

    /// That none of its processes is here.
    pub(super) fn nobody(&self, observer: &Observer) -> String {
        let Self(job) = self;
        if self.is_ours(observer) {
            format!("no process of job {job} has a GPU open")
        } else {
            format!("no process of job {job} is seen here: it has ended, or it runs on another machine")
        }
    }

    /// We are the job's own hook, or a part of it: that it has left nobody is what was hoped for.
    pub fn is_ours(&self, observer: &Observer) -> bool {
        observer.slurm_job.as_ref() == Some(&self.0)
    }

    pub(super) fn has(&self, process: &Process) -> bool {
        place_of(process).and_then(|place| place.slurm).is_some_and(|slurm| slurm.job == self.0)
    }

    pub(super) fn members(&self, world: &World<'_>) -> anyhow::Result<Found> {
        let mut found = Found::default();
        for process in world.snapshot.scanned().iter().filter(|p| self.has(p)) {
            if let Some(process) = world.examine(process.id.pid)?.filter(|p| p.id == process.id) {
                let by_environment =
                    place_of(&process).and_then(|place| place.slurm).is_some_and(|slurm| slurm.by_environment);
                let what = if by_environment { "its environment names" } else { "it stands in the control group of" };
                found.claims.push(Claim { process, why: vec![format!("{what} job {}", self.0)] });
            }
        }
        Ok(found)
    }
}

/// A process with a GPU open whose environment says that it is of this task or part, and the number of its job.
fn who_says_so(reader: &ProcReader, variables: [&str; 2], values: [&str; 2]) -> Option<String> {
    let scan = reader.scan(&[]);
    let says_so = |process: &&Process| {
        let said = |at: usize| process.environment.get(*variables.get(at)?).map(String::as_str);
        said(0) == values.first().copied() && said(1) == values.get(1).copied()
    };
    let process = scan.processes.iter().find(says_so)?;
    let job = place_of(process)?.slurm?.job;
    let shown = text::shorten(&command(process), 60);
    Some(format!("PID {} ({shown}) says that it is of it: gpuresid reclaim --job {job}", process.id.pid))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(name: &str) -> String {
        let reader = ProcReader::new(Default::default()).unwrap();
        crate::error::display(&Job::read(name, &reader).unwrap_err())
    }

    #[test]
    fn what_is_no_job_of_its_own_is_told_how_to_be_named() {
        let reader = ProcReader::new(Default::default()).unwrap();
        for name in ["1", "104", "s6AZ14HJSKB800"] {
            assert_eq!(Job::read(name, &reader).unwrap(), Job(name.into()));
        }
        for name in ["104_2", "104+1"] {
            let text = refused(name);
            assert!(text.contains(&format!("squeue -h -j {name} -o %A prints it")), "{text}");
        }
        assert!(refused("104.batch").contains("gpuresid reclaim --job 104;"));
        for name in ["", "x", "104_", "104_[1-3]", "104;reboot", "-1", "s1"] {
            assert!(refused(name).contains("is no number of a Slurm job"), "{name}");
        }
    }
}
