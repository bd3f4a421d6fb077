//! The rig of the whole-binary tests: a fake machine in a temporary directory, the binary run against it, and programs
//! that use it. Everything that it started is ended with it, by PID.
//!
//! ```text
//! let rig = Rig::new();
//! let neighbour = rig.start("alloc 0 1GiB ready up hold");   // verbs of tests/programs/cuda.py
//! rig.wait_for("up");
//! let options = format!("--report {}", rig.path("report.json").display());
//! rig.check(&options, "alloc 0 2GiB spawn-session { alloc 0 1GiB ready left hold } wait-file left").expect_code(121);
//! let report = rig.report("report.json");
//! ```
#![allow(
    dead_code,
    unused_imports,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "each test file uses its part of the rig, and a rig that fails fails the test"
)]

mod control_group;
mod judged;
mod leftovers;
mod library;
mod records;
mod running;
mod shell;
mod signals;

pub use control_group::ControlGroup;
pub use fake_nvml::faults::Fault;
pub use fake_nvml::ledger::{Allocation, Gpu, Inherit, Instance, Keeper, Ledger, List, Machine};
pub use judged::{
    CONTEXT, Judged, SLACK, alive, children, out_of_sight, parent, sees_everybody, skipped, start_ticks, state,
};
pub use records::Records;
pub use running::{DEADLINE, Finished, Running, wait_until, wait_until_for};
pub use shell::{line_of, shell, shell_line};

use serde_json::{Value, json};
use std::{
    ffi::{OsStr, OsString},
    fs,
    io::Write as _,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Mutex,
        atomic::{AtomicU32, Ordering},
    },
};

/// The program of the tests, in the rig's directory.
const SCRIPT: &str = "cuda.py";

/// A fake machine and everything that happens on it.
pub struct Rig {
    directory: tempfile::TempDir,
    /// Its ledger.
    pub ledger: Ledger,
    library: Mutex<PathBuf>,
    started: AtomicU32,
}

/// One line of the fake library's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// The client.
    pub pid: u32,
    /// NVML's function.
    pub function: String,
    /// The GPU, `0.1` for its second MIG instance.
    pub device: Option<String>,
    /// What it answered; `None` while it hangs.
    pub code: Option<u32>,
}

/// The marker of a checked run that has ended: the numbers of its gpuresid and its command are such that no process
/// can have them.
pub fn marker_of_an_ended_run() -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    format!("{}-4194305-1-4194306", &boot[..8])
}

impl Rig {
    /// A machine with one H200.
    pub fn new() -> Self {
        Self::with_gpus(1)
    }

    /// A machine with so many H200.
    pub fn with_gpus(gpus: u32) -> Self {
        Self::with_machine(&Machine::h200(gpus))
    }

    /// Any machine.
    pub fn with_machine(machine: &Machine) -> Self {
        signals::are_heard_again();
        let directory = tempfile::Builder::new().prefix("rig").tempdir().unwrap();
        let ledger = Ledger::create(directory.path().join("ledger"), machine).unwrap();
        fs::create_dir(directory.path().join("dev")).unwrap();
        let nodes = machine.devices.iter().map(|gpu| format!("nvidia{}", gpu.minor));
        for node in nodes.chain(["nvidiactl".into(), "nvidia-uvm".into()]) {
            open_to_all(&directory.path().join("dev").join(node), 0o666);
        }
        for log in ["started.log", "calls.log", "xids"] {
            open_to_all(&ledger.directory().join(log), 0o666);
        }
        // Programs may run as another user and still have to reach their files.
        for place in ["", "ledger", "ledger/allocations"] {
            let path = directory.path().join(place);
            fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
        }
        // Beside the ledger its path is short, as in a command line of people, and every user can read it, wherever the clone is.
        fs::copy(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/cuda.py"), directory.path().join(SCRIPT))
            .unwrap();
        Self { directory, ledger, library: Mutex::new(library::built()), started: AtomicU32::new(0) }
    }

    /// A path in the rig's directory, where marker files and reports go.
    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The directory that stands for `/dev`.
    pub fn dev(&self) -> PathBuf {
        self.path("dev")
    }

    /// The library that the binary will load.
    pub fn library(&self) -> PathBuf {
        self.library.lock().unwrap().clone()
    }

    /// Uses another library file from now on.
    pub fn use_library(&self, library: impl Into<PathBuf>) {
        *self.library.lock().unwrap() = library.into();
    }

    /// From now on the binary and the library are copies that every user can reach: the clone may lie where only its owner
    /// can.
    pub fn open_to_everybody(&self) {
        let copies = self.path("everybody");
        fs::create_dir(&copies).unwrap();
        let library = copies.join(self.library().file_name().unwrap());
        let copied = [(binary().to_owned(), copies.join("gpuresid")), (self.library(), library.clone())];
        for (file, copy) in &copied {
            fs::copy(file, copy).unwrap();
        }
        self.use_library(library);
        for place in copied.iter().map(|(_, copy)| copy).chain([&copies]) {
            fs::set_permissions(place, fs::Permissions::from_mode(0o755)).unwrap();
        }
    }

    fn binary(&self) -> PathBuf {
        let copy = self.path("everybody/gpuresid");
        if copy.exists() { copy } else { binary().to_owned() }
    }

    /// From now on the library lacks these symbols altogether.
    pub fn without_symbols(&self, symbols: &[&str]) {
        let variant = self.path(format!("libfake_nvml_without_{}.so", symbols.len()));
        library::without(&self.library(), &variant, symbols);
        self.use_library(variant);
    }

    // ---- the machine -----------------------------------------------------------------------------------------------

    /// Changes `machine.json` as a JSON value, its faults included.
    pub fn edit_machine(&self, change: impl FnOnce(&mut Value)) {
        let path = self.ledger.directory().join("machine.json");
        let mut machine: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        change(&mut machine);
        let aside = path.with_extension("new");
        fs::write(&aside, machine.to_string()).unwrap();
        fs::rename(aside, path).unwrap();
    }

    /// Adds a fault.
    pub fn fault(&self, fault: Fault) {
        self.edit_machine(|machine| match machine.get_mut("faults").and_then(Value::as_array_mut) {
            Some(faults) => faults.push(json!(fault)),
            None => machine["faults"] = json!([fault]),
        });
    }

    /// This function answers this code; a trailing `*` stands for any ending.
    pub fn answers(&self, function: &str, code: u32) {
        self.fault(Fault { function: function.into(), code: Some(code), ..Fault::default() });
    }

    /// This function hangs while the marker file exists in the ledger, which this makes. Remove it with
    /// [`Self::let_go`].
    pub fn hangs(&self, function: &str, marker: &str) {
        fs::write(self.ledger.directory().join(marker), "").unwrap();
        self.fault(Fault { function: function.into(), hang_while: Some(marker.into()), ..Fault::default() });
    }

    /// Ends what hangs on this marker.
    pub fn let_go(&self, marker: &str) {
        fs::remove_file(self.ledger.directory().join(marker)).unwrap();
    }

    /// The GPU is lost from now on.
    pub fn lose_gpu(&self, device: usize) {
        let fault = Fault { function: "nvmlDevice*".into(), device: Some(device), code: Some(15), ..Fault::default() };
        self.fault(fault);
    }

    /// Opening the library fails: 4 no permission, 9 driver not loaded, 12 library not found, 18 version mismatch.
    pub fn init_answers(&self, code: u32) {
        self.answers("nvmlInit*", code);
    }

    /// Nothing goes wrong any more.
    pub fn clear_faults(&self) {
        self.edit_machine(|machine| machine["faults"] = json!([]));
    }

    /// An Xid event.
    pub fn xid(&self, device: usize, xid: u64) {
        let mut file = fs::File::options().append(true).open(self.ledger.directory().join("xids")).unwrap();
        file.write_all(format!("{device} {xid}\n").as_bytes()).unwrap();
    }

    // ---- allocations -----------------------------------------------------------------------------------------------

    /// An allocation that lives until it is removed, whoever `pid` is.
    pub fn add(&self, name: &str, allocation: Allocation) {
        self.ledger.write(name, &Allocation { permanent: true, ..allocation }).unwrap();
    }

    /// Changes an allocation; its keepers stay.
    pub fn alter(&self, name: &str, change: impl FnOnce(&mut Allocation)) {
        let mut allocation = self.ledger.allocation(name).unwrap();
        change(&mut allocation);
        self.ledger.write(name, &allocation).unwrap();
    }

    /// Takes an allocation away.
    pub fn remove(&self, name: &str) {
        self.ledger.remove(name).unwrap();
    }

    /// Used bytes of a GPU as the ledger has them.
    pub fn used(&self, device: usize) -> u64 {
        let machine = self.ledger.machine().unwrap();
        self.ledger.moment(&machine).unwrap().memory(&machine, device).unwrap().used
    }

    /// What the fake library was asked so far.
    pub fn calls(&self) -> Vec<Call> {
        let text = fs::read_to_string(self.ledger.directory().join("calls.log")).unwrap();
        let call = |line: &str| {
            let words: Vec<&str> = line.split(' ').collect();
            Call {
                pid: words[0].parse().unwrap(),
                function: words[1].into(),
                device: (words[2] != "-").then(|| words[2].into()),
                code: words[3].parse().ok(),
            }
        };
        // A line may be in the making.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole.lines().map(call).collect()
    }

    // ---- the binary ------------------------------------------------------------------------------------------------

    /// The environment of everything here: the fake machine, and nothing of the surroundings that changes results.
    fn prepare(&self, command: &mut Command) {
        for (name, _) in std::env::vars_os() {
            if name.as_encoded_bytes().starts_with(b"GPURESID_") {
                command.env_remove(name);
            }
        }
        // Commands to paste then have the plain name.
        let directories = binary().parent().map(Path::to_path_buf).into_iter();
        let others = std::env::var_os("PATH").unwrap_or_default();
        let path = std::env::join_paths(directories.chain(std::env::split_paths(&others))).unwrap();
        command
            .env("PATH", path)
            .env("FAKE_NVML_LEDGER", self.ledger.directory())
            .env("FAKE_DEV", self.dev())
            .env_remove("CUDA_VISIBLE_DEVICES")
            .env_remove("CUDA_DEVICE_ORDER")
            .env_remove("NO_COLOR")
            .env_remove("CLICOLOR_FORCE");
    }

    /// The binary with the fake library and these arguments, to be changed further and given to [`Self::launch`].
    pub fn gpuresid(&self, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
        let mut command = Command::new(self.binary());
        command.arg("--nvml-lib").arg(self.library()).arg("--dev").arg(self.dev()).args(arguments);
        self.prepare(&mut command);
        command
    }

    /// Starts a command in the background, its output in files (so that survivors that inherit it block nobody).
    pub fn launch(&self, command: Command) -> Running {
        let number = self.started.fetch_add(1, Ordering::Relaxed);
        Running::start(command, &self.path(format!("output-{number}")))
    }

    /// Runs the binary to its end; the arguments are split at white space.
    pub fn run(&self, arguments: &str) -> Finished {
        self.spawn(arguments).wait()
    }

    /// Starts the binary in the background.
    pub fn spawn(&self, arguments: &str) -> Running {
        self.launch(self.gpuresid(arguments.split_whitespace()))
    }

    /// `gpuresid check OPTIONS -- PROGRAM` to its end; options are split at white space, the program is given as verbs
    /// of `cuda.py`.
    pub fn check(&self, options: &str, verbs: &str) -> Finished {
        self.spawn_check(options, verbs).wait()
    }

    /// The same in the background.
    pub fn spawn_check(&self, options: &str, verbs: &str) -> Running {
        self.launch(self.check_of(options, &self.program(verbs)))
    }

    /// `gpuresid check OPTIONS -- ARGV` with any command.
    pub fn check_of(&self, options: &str, argv: &[OsString]) -> Command {
        let mut command = self.gpuresid(["check"]);
        command.args(options.split_whitespace()).arg("--").args(argv);
        command
    }

    /// A report that the binary wrote into the rig's directory.
    pub fn report(&self, name: &str) -> Value {
        let text = fs::read(self.path(name)).unwrap_or_else(|e| panic!("the report {name}: {e}"));
        serde_json::from_slice(&text).unwrap()
    }

    // ---- programs --------------------------------------------------------------------------------------------------

    /// The argument vector of a CUDA program with these verbs, split at white space.
    pub fn program(&self, verbs: &str) -> Vec<OsString> {
        self.program_of(verbs.split_whitespace())
    }

    /// The same for words that may contain anything.
    pub fn program_of(&self, verbs: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Vec<OsString> {
        let script = self.path(SCRIPT);
        let verbs = verbs.into_iter().map(|v| v.as_ref().to_owned());
        ["python3".into(), script.into()].into_iter().chain(verbs).collect()
    }

    /// Starts a CUDA program beside the binary: a neighbour.
    pub fn start(&self, verbs: &str) -> Running {
        self.start_of(&self.program(verbs))
    }

    /// Starts any program beside the binary.
    pub fn start_of(&self, argv: &[OsString]) -> Running {
        self.launch(self.beside(argv))
    }

    /// Any program beside the binary, not yet started.
    pub fn beside(&self, argv: &[OsString]) -> Command {
        let mut command = Command::new(&argv[0]);
        command.args(&argv[1..]);
        self.prepare(&mut command);
        command
    }

    /// The same with a marker in its environment, as what a check or a marked shell starts.
    pub fn start_marked(&self, argv: &[OsString], marker: &str) -> Running {
        let mut command = self.beside(argv);
        command.env("GPURESID_RUN_ID", marker);
        self.launch(command)
    }

    /// Takes a snapshot that marks; the marker.
    pub fn marking_snapshot(&self, file: &str) -> String {
        let end = self.run(&format!("snapshot -o {file} --env"));
        end.expect_code(0).stdout.trim_end().strip_prefix("export GPURESID_RUN_ID=").expect("an export line").to_owned()
    }

    /// Waits for the marker file of the verb `ready` and returns the PID in it.
    pub fn wait_for(&self, marker: &str) -> u32 {
        let path = self.path(marker);
        wait_until(&format!("the marker {marker}"), || path.exists());
        fs::read_to_string(path).unwrap().parse().unwrap()
    }

    /// Makes the marker file that a program's `wait-file` waits for.
    pub fn mark(&self, marker: &str) {
        fs::write(self.path(marker), "0").unwrap();
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        // Supervisors and holders of the programs look for this file.
        let _ = fs::remove_file(self.ledger.directory().join("machine.json"));
        leftovers::end(&self.ledger.directory().join("started.log"));
    }
}

fn binary() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_gpuresid"))
}

fn open_to_all(path: &Path, mode: u32) {
    fs::write(path, "").unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}
