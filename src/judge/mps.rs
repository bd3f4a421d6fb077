//! NVIDIA's multi-process service: how it is told to quit, and who uses the GPU through a server of it. One place, because
//! a look, the doctor and `reclaim` all say it.

use super::programs;
use crate::model::{Entry, ListKind, ProcId, Process, Snapshot};

/// The command that ends the service whose pipes are in this directory (`None`: where it puts them by itself).
pub(crate) fn quit(pipe_directory: Option<&str>) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'/' | b'.' | b'_' | b'-');
    match pipe_directory.filter(|d| !d.is_empty() && d.bytes().all(plain)) {
        Some(directory) => format!("echo quit | CUDA_MPS_PIPE_DIRECTORY={directory} nvidia-cuda-mps-control"),
        None => "echo quit | nvidia-cuda-mps-control".into(),
    }
}

/// The same for a server or a daemon of it, by its environment.
pub(crate) fn quit_of(process: &Process) -> String {
    quit(process.environment.get("CUDA_MPS_PIPE_DIRECTORY").map(String::as_str))
}

/// The entry is a client's.
pub(crate) fn is_client(entry: &Entry, servers: &[u32]) -> bool {
    entry.lists.contains(&ListKind::Mps) && !servers.contains(&entry.pid)
}

/// The servers, each with its clients.
pub(crate) fn served(snapshot: &Snapshot) -> Vec<(ProcId, Vec<u32>)> {
    let is_server = |process: &&Process| {
        let known = programs::recognise(process);
        known.is_some_and(|known| known.program.remedy == programs::Remedy::MpsServer)
    };
    snapshot.scanned().iter().filter(is_server).map(|server| (server.id, clients(snapshot, server))).collect()
}

/// Who is listed as a client on a GPU that the server is listed on, of the server's user where that can be told: a
/// server works for one user.
pub(crate) fn clients(snapshot: &Snapshot, server: &Process) -> Vec<u32> {
    let mut clients = Vec::new();
    for device in &snapshot.devices {
        let entries = || device.look.entries.iter().flatten();
        if !entries().any(|e| e.pid == server.id.pid) {
            continue;
        }
        let uid = |pid: u32| snapshot.process(pid).and_then(|p| p.uid);
        let its = |pid: u32| uid(pid).zip(server.uid).is_none_or(|(client, server)| client == server);
        let listed = entries().filter(|e| is_client(e, &[server.id.pid]));
        clients.extend(listed.map(|e| e.pid).filter(|pid| its(*pid)));
    }
    clients.sort_unstable();
    clients.dedup();
    clients
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        judge::tests::build::{entry, files, id, look, process, snapshot},
        model::Entry,
    };

    #[test]
    fn the_line_to_quit_has_the_directory_of_the_pipes() {
        assert_eq!(quit(None), "echo quit | nvidia-cuda-mps-control");
        assert_eq!(quit(Some("/run/m-1")), "echo quit | CUDA_MPS_PIPE_DIRECTORY=/run/m-1 nvidia-cuda-mps-control");
        for odd in ["/x; rm -r y", "/tmp/`x`", ""] {
            assert_eq!(quit(Some(odd)), quit(None), "{odd} cannot stand in a command");
        }
    }

    #[test]
    fn clients_are_those_of_the_servers_user_on_its_gpu() {
        let server = process(id(80, 60_000), vec![], Some(files(20, 1, 1)));
        let client = |pid| Entry { lists: vec![ListKind::Compute, ListKind::Mps], ..entry(pid, Some(1)) };
        let mut of_another = process(id(83, 60_003), vec![], Some(files(23, 2, 4)));
        of_another.uid = Some(1000);
        let listed = vec![entry(80, Some(1)), client(81), entry(82, Some(1)), client(83), client(84)];
        let mut seen = snapshot(look(5, listed), vec![server.clone(), of_another]);
        assert_eq!(clients(&seen, &server), [81, 84], "84 cannot be seen, so it may be one");
        seen.devices[0].look.entries = Some(vec![client(81)]);
        assert_eq!(clients(&seen, &server), [0; 0], "the server is on another GPU");
    }
}
