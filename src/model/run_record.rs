//! The record of a check: who of its run lives, and whether what is left may be ended. It is written for whoever comes
//! later and has nobody to ask: a timer of root's, and whoever finds what a check that was killed has left.
//!
//! A number and a start time stay the same through an exec, and so does a pidfd. So a record says of each process also what
//! an exec, another user or another place would change; where one of these is not as it was, the process is not the one
//! that the leave was given for.

use super::{Argv, BootId, ProcId};
use serde::{Deserialize, Serialize};

/// The record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunRecord {
    /// [`super::schema::RECORD`].
    pub schema: String,
    /// Version of gpuresid.
    pub tool_version: String,
    /// The run's marker.
    pub run_id: String,
    /// The boot.
    pub boot_id: BootId,
    /// Inode of the PID namespace that the numbers are of.
    pub pid_namespace: u64,
    /// The gpuresid that writes it.
    pub writer: ProcId,
    /// The checked command.
    pub command: ProcId,
    /// Whether the run goes on.
    pub state: RunState,
    /// When it ended, RFC 3339; `None` while it goes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<String>,
    /// What is left of the run after its end may be ended by whoever finds it.
    pub leave: bool,
    /// Who lives.
    pub members: Vec<RunMember>,
}

/// How far a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// It is watched.
    Running,
    /// Its command has ended, and its verdict is made.
    Ended,
}

/// One process of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunMember {
    /// Who.
    pub id: ProcId,
    /// As what.
    pub fingerprint: Fingerprint,
}

/// What an exec, another user or another place changes about a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fingerprint {
    /// Real user id.
    pub uid: Option<u32>,
    /// The file of its program: device and inode.
    pub program: Option<(u64, u64)>,
    /// [`arguments_of`] it.
    pub arguments: u64,
    /// Its terminal as the kernel numbers it; 0: none.
    pub terminal: i32,
    /// The path of its control group.
    pub cgroup: Option<String>,
    /// The inode of its pidfd, which no other process of this boot has; `None` before Linux 6.9.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pidfd: Option<u64>,
}

impl Fingerprint {
    /// What is not as it was, if anything is.
    pub fn change(&self, now: &Self) -> Option<&'static str> {
        match () {
            () if self.uid.is_none() || self.uid != now.uid => Some("it belongs to another user now"),
            () if self.program.is_none() || self.program != now.program => Some("it runs another program now"),
            () if self.arguments != now.arguments => Some("it has another command line now"),
            () if self.terminal != now.terminal => Some("it has another terminal now"),
            () if self.cgroup != now.cgroup => Some("it is in another control group now"),
            () if self.pidfd.zip(now.pidfd).is_some_and(|(then, now)| then != now) => {
                Some("its number belongs to another process now")
            }
            () => None,
        }
    }
}

/// The command line as a number (FNV-1a), by which two can be told apart and nothing can be read.
pub fn arguments_of(argv: &Argv) -> u64 {
    let bytes = argv.words().iter().flat_map(|word| word.bytes().chain([0]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen() -> Fingerprint {
        Fingerprint {
            uid: Some(1000),
            program: Some((1, 2)),
            arguments: arguments_of(&["python3", "train.py"].into()),
            terminal: 0,
            cgroup: Some("/user.slice".into()),
            pidfd: Some(7),
        }
    }

    #[test]
    fn whatever_changes_is_told() {
        let changed = |change: fn(&mut Fingerprint)| {
            let mut now = seen();
            change(&mut now);
            seen().change(&now)
        };
        assert_eq!(changed(|_| {}), None);
        assert_eq!(changed(|now| now.pidfd = None), None, "a kernel that does not tell");
        let others: [fn(&mut Fingerprint); 8] = [
            |now| now.uid = Some(0),
            |now| now.uid = None,
            |now| now.program = Some((1, 3)),
            |now| now.program = None,
            |now| now.arguments = arguments_of(&["python3", "serve.py"].into()),
            |now| now.terminal = 34_816,
            |now| now.cgroup = None,
            |now| now.pidfd = Some(8),
        ];
        for change in others {
            assert!(changed(change).is_some());
        }
        let unknown = Fingerprint { program: None, ..seen() };
        assert!(unknown.change(&unknown).is_some(), "what was not known then is no proof now");
    }

    #[test]
    fn words_are_told_apart_by_where_they_end() {
        let hash = |words: &[&str]| arguments_of(&Argv::new(words.iter().map(ToString::to_string).collect(), true));
        assert_ne!(hash(&["a", "b"]), hash(&["ab"]));
        assert_ne!(hash(&["a", ""]), hash(&["a"]));
        assert_eq!(hash(&[]), 0xcbf2_9ce4_8422_2325);
    }
}
