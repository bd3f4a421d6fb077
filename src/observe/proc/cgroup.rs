//! `/proc/PID/cgroup`: the one path that says most.

/// The path of the unified (v2) line; where that says nothing, the first v1 path that does. `None`: no line at all.
pub(super) fn telling_path(text: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(text);
    let lines = text.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':');
        let unified = (parts.next()?, parts.next()?) == ("0", "");
        parts.next().filter(|path| path.starts_with('/')).map(|path| (unified, path))
    });
    // Of equals the last one wins a maximum, so the first line has to come last.
    let lines: Vec<_> = lines.collect();
    lines.iter().rev().max_by_key(|(unified, path)| (*path != "/", *unified)).map(|(_, path)| (*path).to_owned())
}

#[cfg(test)]
mod tests {
    use super::telling_path;

    #[test]
    fn the_line_that_says_most() {
        for (text, path) in [
            ("0::/user.slice/session-1.scope\n", Some("/user.slice/session-1.scope")),
            ("0::/\n", Some("/")),
            ("12:pids:/docker/ab\n1:name=systemd:/docker/cd\n0::/\n", Some("/docker/ab")),
            ("12:pids:/\n1:name=systemd:/slurm/job_7\n", Some("/slurm/job_7")),
            ("1:cpu:/old\n0::/new\n", Some("/new")),
            ("0::/with:colons:in\n", Some("/with:colons:in")),
            ("", None),
            ("nonsense\n", None),
        ] {
            assert_eq!(telling_path(text.as_bytes()).as_deref(), path, "{text}");
        }
    }
}
