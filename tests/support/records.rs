//! A place for the records of checks, as an administrator makes it.

use serde_json::Value;
use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

/// The place; removed with the value.
pub struct Records(tempfile::TempDir);

impl Records {
    /// A new one; `None` where we are not root.
    pub fn new() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            super::skipped("this needs root");
            return None;
        }
        let above = tempfile::Builder::new().prefix("records").tempdir_in("/tmp").unwrap();
        fs::set_permissions(above.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let place = above.path().join("records");
        fs::create_dir(&place).unwrap();
        fs::set_permissions(&place, fs::Permissions::from_mode(0o1733)).unwrap();
        Some(Self(above))
    }

    /// The directory.
    pub fn path(&self) -> PathBuf {
        self.0.path().join("records")
    }

    /// The option that names it.
    pub fn option(&self) -> String {
        format!("--records {}", self.path().display())
    }

    /// The files in it.
    pub fn files(&self) -> Vec<PathBuf> {
        fs::read_dir(self.path()).unwrap().map(|entry| entry.unwrap().path()).collect()
    }

    /// The only file in it, and what it says.
    #[track_caller]
    pub fn only(&self) -> (PathBuf, Value) {
        let files = self.files();
        assert_eq!(files.len(), 1, "{files:?}");
        let text = fs::read(&files[0]).unwrap();
        (files[0].clone(), serde_json::from_slice(&text).unwrap())
    }

    /// Writes into a file that is there, as its owner can.
    pub fn change(&self, path: &Path, change: impl FnOnce(&mut Value)) {
        let mut record: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        change(&mut record);
        fs::write(path, record.to_string()).unwrap();
    }
}
