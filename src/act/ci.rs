//! The job of a CI runner whose hook we are: its members are the processes of the same user that carry the job's own
//! cookie. Each runner marks what it starts, and by that mark itself ends what a job has left; who takes the mark out of
//! the environment of a process says that it is meant to stay.

use super::targets::{Found, Membership, World, members};
use crate::{error::hinted, model::Process};

/// The variables by which runners mark a job: GitHub's, Jenkins', GitLab's. Their values name one job and no
/// other. (Jenkins' BUILD_ID is a number that many jobs have.)
pub const COOKIES: [&str; 3] = ["RUNNER_TRACKING_ID", "JENKINS_NODE_COOKIE", "CI_JOB_ID"];

/// A job, by the cookies in its hook's environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CiJob(Vec<(&'static str, String)>);

impl CiJob {
    /// The job that we run in.
    ///
    /// # Errors
    /// If we run in none.
    pub fn ours() -> anyhow::Result<Self> {
        Self::of(|name| std::env::var(name).ok())
    }

    fn of(value: impl Fn(&str) -> Option<String>) -> anyhow::Result<Self> {
        let cookies: Vec<_> = COOKIES.into_iter().filter_map(|name| Some((name, value(name)?))).collect();
        if cookies.is_empty() {
            return Err(hinted(
                format!("this is not the job of a CI runner: none of {} is set", COOKIES.join(", ")),
                "run it in the runner's own job-completed hook; or name the processes: gpuresid reclaim --pid PID",
            ));
        }
        Ok(Self(cookies))
    }

    /// The job has opted out: an empty cookie marks nobody.
    fn opted_out(&self) -> Option<&'static str> {
        self.0.iter().find(|(_, value)| value.is_empty()).map(|(name, _)| *name)
    }

    pub(super) fn nobody(&self) -> String {
        match self.opted_out() {
            Some(name) => format!("{name} is empty, which tells that what this job started is meant to stay"),
            None => "no process of this CI job has a GPU open".into(),
        }
    }

    pub(super) fn members(&self, world: &World<'_>) -> anyhow::Result<Found> {
        let ours = world.snapshot.observer.uid;
        members(world, |process| match self.carried_by(process).filter(|_| process.uid == Some(ours)) {
            Some(name) => Membership::Is(format!("it carries this CI job's own {name}")),
            None => Membership::Not(None),
        })
    }

    /// By which cookie the process is of this job. One that carries another value of any of them is of another job.
    fn carried_by(&self, process: &Process) -> Option<&'static str> {
        let Self(cookies) = self;
        let has = |(name, value): &(&str, String)| process.environment.get(*name) == Some(value);
        cookies.first().filter(|_| self.opted_out().is_none() && cookies.iter().all(has)).map(|(name, _)| *name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(variables: &[(&str, &str)]) -> anyhow::Result<CiJob> {
        CiJob::of(|name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn a_job_is_named_by_its_cookies_and_by_nothing_else() {
        assert!(job(&[("CI", "true"), ("BUILD_ID", "7")]).is_err());
        let found = job(&[("RUNNER_TRACKING_ID", "github_1"), ("BUILD_ID", "7")]).unwrap();
        assert_eq!(found, CiJob(vec![("RUNNER_TRACKING_ID", "github_1".into())]));
        assert_eq!(found.opted_out(), None);
        assert_eq!(job(&[("RUNNER_TRACKING_ID", "")]).unwrap().opted_out(), Some("RUNNER_TRACKING_ID"));
    }
}
