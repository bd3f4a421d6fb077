//! Whether NVIDIA's multi-process service runs, by its directory and by its processes. Nothing connects to it.

use crate::doctor::facts::Mps;
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// The variable that tells a daemon, and every program that is to reach it, where its pipes are.
const PIPES: &[u8] = b"CUDA_MPS_PIPE_DIRECTORY=";
/// Where a program looks that was told nothing.
const DEFAULT: &str = "/tmp/nvidia-mps";

pub(super) fn look(procfs: &Path, environment: &BTreeMap<String, String>) -> Mps {
    let directory = PathBuf::from(environment.get("CUDA_MPS_PIPE_DIRECTORY").map_or(DEFAULT, String::as_str));
    let pid = fs::read_to_string(directory.join("nvidia-cuda-mps-control.pid")).ok();
    let mut mps = Mps {
        directory_exists: directory.is_dir(),
        control_pid: pid.and_then(|text| text.trim().parse().ok()),
        directory,
        ..Mps::default()
    };
    let processes = fs::read_dir(procfs).into_iter().flatten().flatten();
    for pid in processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()) {
        // The kernel keeps 15 bytes of a name, which are the same for both programs.
        let of = procfs.join(pid.to_string());
        if !fs::read(of.join("comm")).is_ok_and(|comm| comm.starts_with(b"nvidia-cuda-mps")) {
            continue;
        }
        let command = fs::read(of.join("cmdline")).unwrap_or_default();
        let first = command.split(|byte| *byte == 0).next().unwrap_or_default();
        if first.ends_with(b"server") {
            mps.servers.push(pid)
        } else {
            mps.daemons.push(pid)
        }
        let environment = fs::read(of.join("environ")).unwrap_or_default();
        let pipes = environment.split(|byte| *byte == 0).find_map(|entry| entry.strip_prefix(PIPES));
        mps.pipes = mps.pipes.or_else(|| pipes.map(|directory| String::from_utf8_lossy(directory).into_owned()));
    }
    mps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn daemons_and_servers_are_told_apart_and_a_left_directory_is_seen() {
        let root = tempfile::tempdir().unwrap();
        for (pid, comm, argv) in [
            ("7", "nvidia-cuda-mps\n", "/usr/bin/nvidia-cuda-mps-control\0-d\0"),
            ("8", "nvidia-cuda-mps\n", "nvidia-cuda-mps-server\0"),
            ("9", "python\n", "nvidia-cuda-mps-server\0"),
        ] {
            let process = root.path().join(pid);
            fs::create_dir(&process).unwrap();
            fs::write(process.join("comm"), comm).unwrap();
            fs::write(process.join("cmdline"), argv).unwrap();
            fs::write(process.join("environ"), format!("A=1\0CUDA_MPS_PIPE_DIRECTORY=/run/{pid}\0")).unwrap();
        }
        let pipes = root.path().join("pipes");
        fs::create_dir(&pipes).unwrap();
        fs::write(pipes.join("nvidia-cuda-mps-control.pid"), "7\n").unwrap();
        let environment =
            BTreeMap::from([("CUDA_MPS_PIPE_DIRECTORY".to_string(), pipes.to_str().unwrap().to_string())]);
        let mps = look(root.path(), &environment);
        assert_eq!((mps.daemons, mps.servers, mps.control_pid), (vec![7], vec![8], Some(7)));
        assert!(mps.directory_exists);
        assert!(matches!(mps.pipes.as_deref(), Some("/run/7" | "/run/8")), "not a stranger's: {:?}", mps.pipes);
        assert_eq!(look(root.path(), &BTreeMap::new()).directory, Path::new(DEFAULT));
    }
}
