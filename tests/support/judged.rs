//! A report, asked for what the scenarios assert, and the looks after its advice was followed.

use super::{Rig, running::wait_until};
use serde_json::Value;
use std::{fs, process::Command};

/// Memory that one context has listed.
pub const CONTEXT: u64 = 518 << 20;
/// What a device in use and a context cost beside listed memory is below this.
pub const SLACK: u64 = 12 << 20;

/// A report of `check`, `diff` or `status`.
#[derive(Debug, Clone)]
pub struct Judged(pub Value);

impl Judged {
    /// The run's verdict.
    pub fn verdict(&self) -> &str {
        self.0["verdict"].as_str().unwrap()
    }

    /// Fails the test unless this is the verdict.
    #[track_caller]
    pub fn expect(&self, verdict: &str) -> &Self {
        assert_eq!(self.verdict(), verdict, "{:#}", self.0);
        self
    }

    /// Charged bytes of a GPU: at least, and at most (`None`: unknown).
    pub fn interval(&self, gpu: usize) -> (u64, Option<u64>) {
        let device = &self.0["devices"][gpu];
        (device["charged_residue_bytes"].as_u64().unwrap(), device["charged_residue_max_bytes"].as_u64())
    }

    /// Fails the test unless exactly this is charged on GPU 0, at least and at most.
    #[track_caller]
    pub fn expect_charged(&self, bytes: u64) -> &Self {
        assert_eq!(self.interval(0), (bytes, Some(bytes)), "{:#}", self.0);
        self
    }

    /// Fails the test unless so much is charged at least and at most on GPU 0, to the cost of a few contexts.
    #[track_caller]
    pub fn expect_between(&self, low: u64, high: u64) -> &Self {
        let (least, most) = self.interval(0);
        let near = |a: u64, b: u64| a.abs_diff(b) <= SLACK;
        assert!(near(least, low) && most.is_some_and(|m| near(m, high)), "wanted {low}–{high}: {:#}", self.0);
        self
    }

    /// The PIDs of all holders.
    pub fn pids(&self) -> Vec<u64> {
        self.list("holders").iter().filter_map(|h| h["pid"].as_u64()).collect()
    }

    /// The holder with this PID.
    #[track_caller]
    pub fn holder(&self, pid: u32) -> &Value {
        let found = self.list("holders").iter().find(|h| h["pid"] == pid);
        found.unwrap_or_else(|| panic!("no holder {pid} in {:#}", self.0))
    }

    /// Fails the test unless this PID is named with this cause and lineage.
    #[track_caller]
    pub fn expect_holder(&self, pid: u32, cause: &str, lineage: &str) -> &Value {
        let holder = self.holder(pid);
        assert_eq!((&holder["cause"], &holder["lineage"]), (&cause.into(), &lineage.into()), "{:#}", self.0);
        holder
    }

    /// Everything that is said about why a PID is held responsible.
    #[track_caller]
    pub fn why(&self, pid: u32) -> String {
        self.holder(pid)["why"].to_string()
    }

    /// The commands that are advised, without the offer of our own plan that stands beside them.
    pub fn commands(&self) -> Vec<&str> {
        let all = self.list("advice").iter().filter_map(|a| a["command"].as_str());
        all.filter(|command| !command.starts_with("gpuresid reclaim")).collect()
    }

    /// All of the advice, as text.
    pub fn advice(&self) -> String {
        self.0["advice"].to_string()
    }

    /// The first finding of this kind.
    pub fn finding(&self, kind: &str) -> Option<&Value> {
        self.list("findings").iter().find(|f| f["kind"] == kind)
    }

    /// What the first finding of this kind says.
    #[track_caller]
    pub fn finding_text(&self, kind: &str) -> &str {
        let found = self.finding(kind).unwrap_or_else(|| panic!("no finding {kind} in {:#}", self.0));
        found["text"].as_str().unwrap()
    }

    /// What keeps the interval of GPU 0 open, or decided.
    pub fn because(&self) -> String {
        self.0["devices"][0]["because"].to_string()
    }

    /// Everything that could not be seen, as text.
    pub fn gaps(&self) -> String {
        self.0["gaps"].to_string()
    }

    /// A list of the report.
    #[track_caller]
    pub fn list(&self, name: &str) -> &[Value] {
        self.0[name].as_array().unwrap_or_else(|| panic!("no list {name} in {:#}", self.0))
    }
}

impl Rig {
    /// The option that writes [`Self::judged`].
    pub fn reporting(&self, options: &str) -> String {
        format!("{options} --report {}", self.path("report.json").display())
    }

    /// The report that [`Self::reporting`] asked for.
    #[track_caller]
    pub fn judged(&self) -> Judged {
        Judged(self.report("report.json"))
    }

    /// What `status` says now.
    #[track_caller]
    pub fn now(&self) -> Judged {
        Judged(self.run("status --json").expect_code(0).json())
    }

    /// Pastes an advised command into a shell. It may end only programs of this rig.
    #[track_caller]
    pub fn paste(&self, command: &str) {
        let started = fs::read_to_string(self.ledger.directory().join("started.log")).unwrap();
        let ours = |pid: &str| started.lines().any(|line| line.split(' ').next() == Some(pid));
        let numbers = command.split(|c: char| !c.is_ascii_digit()).filter(|word| !word.is_empty());
        assert!(
            command.starts_with("kill ") && numbers.clone().count() > 0 && numbers.clone().all(ours),
            "not to be pasted here: {command}"
        );
        assert!(Command::new("sh").args(["-c", command]).status().unwrap().success(), "{command}");
    }

    /// The negative control: after the advised command the memory comes back to what was used before, and the next
    /// look blames nobody.
    #[track_caller]
    pub fn clean_after(&self, command: &str, used: u64) {
        assert!(self.used(0) > used, "nothing would show that the advice works");
        self.paste(command);
        wait_until(&format!("the memory to come back after `{command}`"), || self.used(0) == used);
        let now = self.now();
        assert_eq!(now.0["devices"][0]["used_bytes"], used, "{:#}", now.0);
        assert_eq!(now.commands(), [""; 0], "{:#}", now.0);
        self.check("", "alloc 0 1GiB").expect_code(0);
    }

    /// Waits until the library has been read so often that at least two whole looks began and ended from now on.
    pub fn wait_for_looks(&self) {
        let looks = || self.calls().iter().filter(|c| c.function.starts_with("nvmlDeviceGetMemoryInfo")).count();
        let gpus = self.ledger.machine().unwrap().devices.len();
        let enough = looks() + 8 * gpus;
        wait_until("a few looks", || looks() >= enough);
    }
}

/// Whether this process runs. A zombie does not, but one whose main thread alone is gone does.
pub fn alive(pid: u32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    fields[0] != "Z" || fields[17] != "1"
}

/// When a living process was started, in clock ticks since boot.
pub fn start_ticks(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit(") ").next().unwrap().split(' ').nth(19).unwrap().parse().unwrap()
}

/// The letter of a process's state; `None`: it is gone.
pub fn state(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// Its parent; `None`: it is gone.
pub fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

/// The children of a process.
pub fn children(pid: u32) -> Vec<u32> {
    let list = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    list.split_whitespace().filter_map(|child| child.parse().ok()).collect()
}

/// Says why a test looked at nothing.
pub fn skipped(why: &str) {
    let _ = std::io::Write::write_all(&mut std::io::stderr(), format!("skipped: {why}\n").as_bytes());
}

/// Whether every process of the machine can be seen from here: not from inside a container.
pub fn sees_everybody() -> bool {
    // The number of the initial PID namespace is a constant of the kernel.
    fs::read_link("/proc/self/ns/pid").is_ok_and(|link| link.as_os_str() == "pid:[4026531836]")
}

/// Whether a test cannot be made here because it needs to see everybody; says so.
pub fn out_of_sight() -> bool {
    let blind = !sees_everybody();
    if blind {
        skipped("from inside a container the answer is another one: see scenario_namespaces");
    }
    blind
}
