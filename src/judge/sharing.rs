//! Memory that one process allocated and another maps (CUDA IPC): when the first is gone, the driver lists its memory with
//! the second. The proof is a mapped file in `/dev/shm` that CUDA or PyTorch named after the one that is gone.

use super::{run::Run, scene::Scene};
use crate::{
    model::{Evidence, Maker, Named, ProcId, Process},
    text,
};

/// Whether a process maps a shared-memory file that PyTorch or CUDA named after `pid`, a process of the run.
pub(crate) fn shares_memory_of(run: &Run<'_>, process: &Process, pid: u32) -> bool {
    mapped_from(run, process, pid).is_some()
}

/// The mapped file that is named after `pid`. One that it mapped before was made by an earlier bearer of the number.
fn mapped_from<'p>(run: &Run<'_>, process: &'p Process, pid: u32) -> Option<&'p str> {
    let before = || run.before.scanned().iter().find(|p| p.id == process.id);
    let is_old = |path: &String| before().is_some_and(|before| before.shared_mappings.contains(path));
    let made = |path: &&String| maker(path).is_some_and(|(made_by, _)| made_by == pid);
    process.shared_mappings.iter().filter(made).find(|path| !is_old(path)).map(String::as_str)
}

/// Who made a file, and whether only sharing of GPU memory makes such files: `torch_PID_…` (decimal, also made for
/// tensors of the CPU), `cuda.shm.UID.PID.…` (hexadecimal).
fn maker(path: &str) -> Option<(u32, bool)> {
    let name = path.rsplit('/').next().unwrap_or(path);
    if let Some(rest) = name.strip_prefix("torch_") {
        return Some((rest.split('_').next()?.parse().ok()?, false));
    }
    let pid = name.strip_prefix("cuda.shm.")?.split('.').nth(1)?;
    Some((u32::from_str_radix(pid, 16).ok()?, true))
}

/// Why a listed process is held to keep memory of one that is gone; `None` without a proof.
pub(crate) fn peer_mapping(scene: &Scene<'_>, process: &Process) -> Option<Evidence> {
    in_a_run(scene, process).or_else(|| after_the_fact(scene, process))
}

/// The other was seen, was listed, and is gone.
fn in_a_run(scene: &Scene<'_>, process: &Process) -> Option<Evidence> {
    let run = scene.run?;
    let alive = |id: ProcId| scene.processes.iter().any(|p| p.id == id);
    run.trace.seen.iter().filter(|s| s.listed && s.id != process.id && !alive(s.id)).find_map(|gone| {
        let file = mapped_from(run, process, gone.id.pid)?;
        let peaks = run.trace.devices.iter().flat_map(|d| &d.process_peaks);
        let had: crate::model::Bytes = peaks.filter(|(id, _)| *id == gone.id).map(|(_, bytes)| *bytes).sum();
        let command = text::shorten(&text::display_command(&gone.argv, &gone.comm), 60);
        let maker = Maker::Seen(Named { pid: gone.id.pid, name: command.into() }, had);
        Some(Evidence::MapsSharedMemory { file: file.into(), maker })
    })
}

/// The other is named by a file of CUDA's own and no process has its number, where all processes can be seen.
fn after_the_fact(scene: &Scene<'_>, process: &Process) -> Option<Evidence> {
    let snapshot = scene.snapshot;
    if snapshot.observer.out_of_sight() || snapshot.processes.is_none() {
        return None;
    }
    // The number is that of the maker's own namespace, which may be another container that shares /dev/shm: whoever has
    // the number anywhere may be the one.
    let lives = |pid: u32| {
        scene.processes.iter().any(|p| p.nspid.contains(&pid)) || snapshot.uninspected.iter().any(|u| u.id.pid == pid)
    };
    process.shared_mappings.iter().find_map(|path| {
        let (pid, of_gpu) = maker(path)?;
        (of_gpu && !lives(pid))
            .then(|| Evidence::MapsSharedMemory { file: path.as_str().into(), maker: Maker::Gone(pid) })
    })
}

#[cfg(test)]
mod tests {
    use super::maker;

    #[test]
    fn names_tell_their_maker() {
        for (path, made) in [
            ("/dev/shm/torch_544_2810_0", Some((544, false))),
            ("/dev/shm/cuda.shm.0.220.1", Some((0x220, true))),
            ("/dev/shm/cuda.shm.3e8.1f4.2", Some((500, true))),
            ("/dev/shm/torch_x_1", None),
            ("/dev/shm/cuda.shm.0", None),
            ("/dev/shm/sem.mp-1", None),
        ] {
            assert_eq!(maker(path), made, "{path}");
        }
    }
}
