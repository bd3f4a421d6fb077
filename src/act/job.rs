//! A Slurm job as a person names it, and who is of it. Processes carry the number of their own that Slurm gives each task
//! of an array and each part of a heterogeneous job, not the name that people use for these; and what a process says of
//! its array may be left over from the job that submitted it. So such a name is answered with the number to use instead.
//!
//! A control group is made by Slurm, but an environment is handed on: by `sbatch` to the next job, to other users by `sudo`.
//! So whoever is not of the job's user, or older than the job, is none of it. In Slurm's own hooks both are known.

use super::targets::{Found, Membership, World, command, members};
use crate::{
    error::hinted,
    judge::place_of,
    model::{Observer, Process},
    observe::proc::ProcReader,
    text,
};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Times in whole seconds may differ by so much.
const ROUNDING: Duration = Duration::from_secs(2);

/// A job, by its number or its SLUID.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    name: String,
    /// Its user, where we are its hook.
    uid: Option<u32>,
    /// When it was started, since 1970, where we are its hook.
    began: Option<Duration>,
}

/// What a person may write for one.
enum Typed<'a> {
    Job,
    /// `104_2`, `104+1`: the variables that say so, and the two numbers.
    Part(&'static str, [&'static str; 2], [&'a str; 2]),
    /// `104.0`, and the job's number.
    Step(&'a str),
    Nothing,
}

fn read(name: &str) -> Typed<'_> {
    let number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let sluid = name.len() == 14 && name.starts_with('s') && name.bytes().all(|b| b.is_ascii_alphanumeric());
    let array = ["SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"];
    let parts = ["SLURM_HET_JOB_ID", "SLURM_HET_JOB_OFFSET"];
    match (name.split_once('_'), name.split_once('+'), name.split_once('.')) {
        _ if number(name) || sluid => Typed::Job,
        (Some((job, task)), ..) if number(job) && number(task) => Typed::Part("task of an array", array, [job, task]),
        (_, Some((job, at)), _) if number(job) && number(at) => {
            Typed::Part("part of a heterogeneous job", parts, [job, at])
        }
        (.., Some((job, step))) if number(job) && !step.is_empty() => Typed::Step(job),
        _ => Typed::Nothing,
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
            Typed::Job => Ok(Self::in_surroundings(name, |variable| std::env::var(variable).ok())),
            Typed::Step(job) => Err(hinted(
                format!("{shown} is a step of a job, and steps are not ended one by one"),
                format!("the whole job: gpuresid reclaim --job {job}; one process: gpuresid reclaim --pid PID"),
            )),
            Typed::Nothing => Err(hinted(
                format!("{shown} is not the number of a Slurm job"),
                "write the number alone, as in: gpuresid reclaim --job 1234; `squeue -u $USER` lists yours",
            )),
            Typed::Part(what, variables, values) => Err(hinted(
                format!("{shown} is a {what}, and Slurm gives each a job number of its own: use that"),
                who_says_so(reader, variables, values).unwrap_or_else(|| {
                    format!("squeue -h -j {name} -o %A prints it; then: gpuresid reclaim --job NUMBER")
                }),
            )),
        }
    }

    /// What Slurm tells the hooks of a job (`slurm.conf`, Prolog and Epilog) is known of this job in its own.
    fn in_surroundings(name: &str, value: impl Fn(&str) -> Option<String>) -> Self {
        let told = |variable| value(variable).filter(|_| value("SLURM_JOB_ID").as_deref() == Some(name));
        let uid = told("SLURM_JOB_UID").and_then(|uid| uid.parse().ok());
        let began = told("SLURM_JOB_START_TIME").and_then(|at| at.parse().ok()).map(Duration::from_secs);
        Self { name: name.to_owned(), uid, began }
    }

    /// That none of its processes is here.
    pub(super) fn nobody(&self, observer: &Observer) -> String {
        let job = &self.name;
        if self.is_ours(observer) {
            format!("no process of job {job} has a GPU open")
        } else {
            format!("no process of job {job} is seen here: it has ended, or it runs on another machine")
        }
    }

    /// We are the job's own hook, or a part of it: that it has left nobody is what was hoped for.
    pub fn is_ours(&self, observer: &Observer) -> bool {
        observer.slurm_job.as_ref() == Some(&self.name)
    }

    pub(super) fn members(&self, world: &World<'_>) -> anyhow::Result<Found> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).ok();
        members(world, |process| self.has(process, now))
    }

    fn has(&self, process: &Process, now: Option<Duration>) -> Membership {
        let slurm = place_of(process).and_then(|place| place.slurm).filter(|slurm| slurm.job == self.name);
        // The supervisor of a step is Slurm's own.
        let Some(slurm) = slurm.filter(|_| process.comm != "slurmstepd") else { return Membership::Not(None) };
        let what = if slurm.by_environment { "its environment names" } else { "it stands in the control group of" };
        let what = format!("{what} job {}", self.name);
        let started = now.zip(process.age_seconds).map(|(now, age)| now.saturating_sub(Duration::from_secs(age)));
        if self.uid.is_some_and(|uid| process.uid != Some(uid)) {
            Membership::Not(Some(format!("{what}, but it belongs to another user than that job")))
        } else if self.began.is_some_and(|began| started.is_none_or(|started| started + ROUNDING < began)) {
            Membership::Not(Some(format!("{what}, but it is older than that job")))
        } else {
            Membership::Is(what)
        }
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
            assert_eq!(Job::read(name, &reader).unwrap().name, name);
        }
        for name in ["104_2", "104+1"] {
            let text = refused(name);
            assert!(text.contains(&format!("squeue -h -j {name} -o %A prints it")), "{text}");
        }
        assert!(refused("104.batch").contains("gpuresid reclaim --job 104;"));
        for name in ["", "x", "104_", "104_[1-3]", "104;reboot", "-1", "s1"] {
            assert!(refused(name).contains("is not the number of a Slurm job"), "{name}");
        }
    }
    #[test]
    fn only_the_jobs_own_hook_is_told_its_user_and_its_start() {
        let hook = [("SLURM_JOB_ID", "77"), ("SLURM_JOB_UID", "1000"), ("SLURM_JOB_START_TIME", "5000")];
        let value = |name: &str| hook.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        let job = Job::in_surroundings("77", value);
        assert_eq!((job.uid, job.began), (Some(1000), Some(Duration::from_secs(5000))));
        assert_eq!(Job::in_surroundings("78", value), Job { name: "78".into(), uid: None, began: None });
    }
}
