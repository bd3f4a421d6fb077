//! Device files, namespaces, `/dev/shm`, and what the dynamic linker is told: this machine without its driver.

use super::mps;
use crate::{
    doctor::facts::{Access, Fill, Machine, Node, Seen, Xid},
    observe::proc::ProcOptions,
};
use rustix::fs::{Access as Wanted, AtFlags, CWD, accessat, statvfs};
use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

/// The inode of the machine's first cgroup namespace, fixed in the kernel (PROC_CGROUP_INIT_INO).
const FIRST_CGROUP_NAMESPACE: u64 = 0xEFFF_FFFB;

/// NVIDIA's libraries that a wrong search path would bring in.
const LIBRARIES: [&str; 2] = ["libnvidia-ml.so.1", "libcuda.so.1"];

pub(super) fn look(
    proc: &ProcOptions,
    minors: &[u32],
    environment: &BTreeMap<String, String>,
    xids: Seen<Vec<Xid>>,
) -> Machine {
    let mut names = vec!["nvidiactl".to_string(), "nvidia-uvm".to_string()];
    names.extend(minors.iter().map(|minor| format!("nvidia{minor}")));
    Machine {
        nodes: names.iter().map(|name| node(proc.dev.join(name))).collect(),
        initial_cgroup_namespace: fs::metadata("/proc/self/ns/cgroup").ok().map(|m| m.ino() == FIRST_CGROUP_NAMESPACE),
        shm: shm(&proc.dev.join("shm")),
        xids,
        mps: mps::look(&proc.procfs, environment),
        preload_file: fs::read_to_string("/etc/ld.so.preload").map(|text| words(&text)).unwrap_or_default(),
        library_path_hits: library_path_hits(environment.get("LD_LIBRARY_PATH").map_or("", String::as_str)),
    }
}

fn node(path: PathBuf) -> Node {
    let access = match fs::metadata(&path) {
        Err(_) => Access::Missing,
        Ok(_) if accessat(CWD, &path, Wanted::READ_OK | Wanted::WRITE_OK, AtFlags::EACCESS).is_ok() => Access::Granted,
        Ok(file) => Access::Denied {
            mode: file.mode() & 0o7777,
            group: uzers::get_group_by_gid(file.gid()).map(|group| group.name().to_string_lossy().into_owned()),
        },
    };
    Node { path, access }
}

fn shm(path: &Path) -> Seen<Fill> {
    match statvfs(path) {
        // What is kept for root is neither in use nor to be had, as `df` counts.
        Ok(fs) => {
            let in_use = fs.f_blocks.saturating_sub(fs.f_bfree);
            Seen::As(Fill { total: (in_use + fs.f_bavail) * fs.f_frsize, free: fs.f_bavail * fs.f_frsize })
        }
        Err(error) => Seen::Hidden(format!("{}: {error}", path.display())),
    }
}

fn words(text: &str) -> Vec<String> {
    text.split([' ', ':', '\n', '\t']).filter(|word| !word.is_empty()).map(Into::into).collect()
}

fn library_path_hits(list: &str) -> Vec<PathBuf> {
    let directories = list.split(':').filter(|directory| !directory.is_empty());
    directories
        .flat_map(|directory| LIBRARIES.iter().map(move |name| Path::new(directory).join(name)))
        .filter(|file| file.exists())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_path_with_nvidias_libraries_is_noticed() {
        let directory = tempfile::tempdir().unwrap();
        let stubs = directory.path().join("stubs");
        fs::create_dir(&stubs).unwrap();
        fs::write(stubs.join("libcuda.so.1"), "").unwrap();
        let list = format!("/nowhere::{}", stubs.display());
        assert_eq!(library_path_hits(&list), [stubs.join("libcuda.so.1")]);
        assert_eq!(words("/a.so /b.so\n/c.so"), ["/a.so", "/b.so", "/c.so"]);
    }

    #[test]
    fn nodes_are_missing_or_granted() {
        let directory = tempfile::tempdir().unwrap();
        let there = directory.path().join("nvidia0");
        assert_eq!(node(there.clone()).access, Access::Missing);
        fs::write(&there, "").unwrap();
        assert_eq!(node(there).access, Access::Granted);
    }

    #[test]
    fn the_fill_of_a_file_system_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let Seen::As(fill) = shm(directory.path()) else { panic!("not read") };
        assert!(fill.total >= fill.free && fill.total > 0);
        assert!(matches!(shm(&directory.path().join("none")), Seen::Hidden(_)));
    }
}
