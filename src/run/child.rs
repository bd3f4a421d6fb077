//! Starts the command: same terminal, same process group, nothing of ours in its environment but the marker.

use super::{exec, signal_child::Running};
use std::{
    ffi::{OsStr, OsString},
    fmt, fs, io,
    io::Read,
    os::unix::{ffi::OsStrExt, fs::PermissionsExt},
    path::{Path, PathBuf},
};

/// Why the command was not started.
#[derive(Debug)]
pub struct NotStarted {
    /// [`crate::exit::NOT_FOUND`], [`crate::exit::NOT_RUNNABLE`], or [`crate::exit::CANNOT`] where the system was out
    /// of something.
    pub exit_code: i32,
    /// What went wrong.
    pub message: String,
    /// What to do.
    pub hint: Option<String>,
}

impl fmt::Display for NotStarted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        self.hint.iter().try_for_each(|hint| write!(f, "; {hint}"))
    }
}

impl std::error::Error for NotStarted {}

/// Starts `argv` with this run's marker and what else it shall find in its environment.
///
/// # Errors
/// If it could not be started; then nothing of it has run.
pub(super) fn start(argv: &[OsString], run_id: &str, more: &[(OsString, OsString)]) -> Result<Running, NotStarted> {
    let Some((program, arguments)) = argv.split_first() else {
        let message = "there is no command to run".into();
        return Err(NotStarted { exit_code: crate::exit::CANNOT, message, hint: None });
    };
    let spawn = |program: &OsStr, script: Option<&OsStr>| {
        let arguments: Vec<&OsStr> = script.into_iter().chain(arguments.iter().map(OsString::as_os_str)).collect();
        exec::spawn(program, &arguments, run_id, more)
    };
    let error = match spawn(program, None) {
        Ok(child) => return Ok(Running::new(child)),
        Err(error) => error,
    };
    // As execvp: a file without `#!` is a script of /bin/sh. A file with a zero byte is a program for another machine.
    let no_format = error.raw_os_error() == Some(rustix::io::Errno::NOEXEC.raw_os_error());
    let script = no_format.then(|| find(program)).flatten().filter(|file| !looks_binary(file));
    if let Some(script) = script {
        // A name that begins with a dash would be an option of the shell.
        let script = if script.as_os_str().as_bytes().starts_with(b"-") { Path::new(".").join(script) } else { script };
        return spawn(OsStr::new("/bin/sh"), Some(script.as_os_str()))
            .map(Running::new)
            .map_err(|e| explain(program, &e));
    }
    Err(explain(program, &error))
}

/// The file that a program's name means: the name itself if it has a slash, else the first executable one.
fn find(program: &OsStr) -> Option<PathBuf> {
    let mut files = exec::candidates(program).into_iter().map(PathBuf::from);
    if program.as_bytes().contains(&b'/') {
        return files.next();
    }
    files.find(|file| is_executable(file))
}

fn is_executable(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

fn looks_binary(file: &Path) -> bool {
    let mut start = [0; 256];
    fs::File::open(file).and_then(|mut f| f.read(&mut start)).is_ok_and(|n| start.iter().take(n).any(|b| *b == 0))
}

/// Says why a program could not be started, with the exit code that shells and `timeout` use for it.
fn explain(program: &OsStr, error: &io::Error) -> NotStarted {
    use crate::exit::{CANNOT, NOT_FOUND, NOT_RUNNABLE};
    use rustix::io::Errno;
    let name = crate::text::clean(&crate::text::from_bytes(program.as_bytes()));
    let named = |exit_code, text: &str, hint: &str| NotStarted {
        exit_code,
        message: format!("cannot run `{name}`: {text}"),
        hint: (!hint.is_empty()).then(|| hint.into()),
    };
    let file = find(program);
    let exists = file.as_deref().is_some_and(Path::exists);
    let no_such_command = || {
        let hint = "look at the spelling, or write `./` before a file of this directory";
        named(NOT_FOUND, "there is no such command in PATH", hint)
    };
    // A directory of that name is no command, though the kernel refuses it as if it were one.
    let only_directories =
        || exec::candidates(program).iter().map(Path::new).all(|found| found.is_dir() || !found.exists());
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOENT) if exists => named(
            NOT_RUNNABLE,
            "the file is there, but the interpreter or loader that it names is not",
            "look at its first line (`head -1`) or at `file`",
        ),
        Some(Errno::NOENT) if program.as_bytes().contains(&b'/') => {
            named(NOT_FOUND, "there is no such file", "look at the path")
        }
        Some(Errno::NOENT) => no_such_command(),
        Some(Errno::ACCESS) if !program.as_bytes().contains(&b'/') && only_directories() => no_such_command(),
        Some(Errno::ACCESS) if file.as_deref().is_some_and(Path::is_dir) => {
            named(NOT_RUNNABLE, "it is a directory", "")
        }
        Some(Errno::ACCESS) => named(
            NOT_RUNNABLE,
            "permission denied",
            "if it is meant to be run, `chmod +x` the file, or name its interpreter (`gpuresid check -- python train.py`)",
        ),
        Some(Errno::NOEXEC) => {
            named(NOT_RUNNABLE, "the system does not know this format", "was it built for another machine?")
        }
        Some(Errno::AGAIN | Errno::NOMEM | Errno::MFILE | Errno::NFILE) => {
            named(CANNOT, &format!("no new process could be started ({error})"), "look at `ulimit -a` and free memory")
        }
        _ => named(NOT_RUNNABLE, &error.to_string(), ""),
    }
}
