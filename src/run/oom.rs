//! How often the kernel's OOM killer struck in our cgroup: the only witness when a command just disappears.

use std::{fs, path::PathBuf};

/// Processes of our cgroup that the OOM killer has ended since the cgroup was made; `None` if the kernel does not tell.
pub(super) fn kills() -> Option<u64> {
    let cgroups = fs::read_to_string("/proc/self/cgroup").ok()?;
    count(&fs::read_to_string(counter(&cgroups)?).ok()?)
}

/// The file that counts: of the memory controller where version 1 has it, else of version 2.
fn counter(cgroups: &str) -> Option<PathBuf> {
    let find = |wanted: &dyn Fn(&str) -> bool| {
        cgroups.lines().find_map(|line| {
            let (_, rest) = line.split_once(':')?;
            let (controllers, path) = rest.split_once(':')?;
            wanted(controllers).then(|| path.trim_start_matches('/'))
        })
    };
    let v1 = find(&|c| c.split(',').any(|c| c == "memory"))
        .map(|path| PathBuf::from("/sys/fs/cgroup/memory").join(path).join("memory.oom_control"));
    v1.or_else(|| find(&str::is_empty).map(|path| PathBuf::from("/sys/fs/cgroup").join(path).join("memory.events")))
}

fn count(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_of_cgroups_are_read() {
        assert_eq!(counter("0::/user.slice/a b\n"), Some("/sys/fs/cgroup/user.slice/a b/memory.events".into()));
        let v1 = "12:cpu,cpuacct:/x\n5:memory:/docker/abc\n0::/\n";
        assert_eq!(counter(v1), Some("/sys/fs/cgroup/memory/docker/abc/memory.oom_control".into()));
        assert_eq!(counter(""), None);
        assert_eq!(count("low 0\noom 3\noom_kill 2\noom_group_kill 0\n"), Some(2));
        assert_eq!(count("oom_kill_disable 0\nunder_oom 0\n"), None);
    }
}
