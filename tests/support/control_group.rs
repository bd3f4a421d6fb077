//! A control group of the tests, and who is in it.

use super::skipped;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Removed with the value, and whoever is in it then goes back to the group above.
pub struct ControlGroup(PathBuf);

impl ControlGroup {
    /// One of this name at the top; `None`, and said, where none can be made.
    pub fn new(name: &str) -> Option<Self> {
        // The first of these may be no hierarchy, but a plain directory that holds several: there no file appears.
        let hierarchies = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/systemd"].map(Path::new);
        let made =
            hierarchies.into_iter().filter(|it| it.join("cgroup.controllers").exists() || it.join("tasks").exists());
        let made = made.map(|it| it.join(name)).find(|place| fs::create_dir(place).is_ok());
        if made.is_none() {
            skipped("no control group can be made here");
        }
        made.map(Self)
    }

    /// One below it, as `Delegate=` lets services make.
    pub fn below(&self, name: &str) -> Self {
        let place = self.0.join(name);
        fs::create_dir(&place).unwrap();
        Self(place)
    }

    /// Puts a process into it.
    pub fn add(&self, pid: u32) {
        fs::write(self.0.join("cgroup.procs"), pid.to_string()).unwrap();
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        let above = self.0.parent().map(|above| above.join("cgroup.procs"));
        for pid in fs::read_to_string(self.0.join("cgroup.procs")).unwrap_or_default().lines() {
            let _ = above.as_ref().map(|above| fs::write(above, pid));
        }
        let _ = fs::remove_dir(&self.0);
    }
}
