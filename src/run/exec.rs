//! From fork to exec: the command gets our environment without our own variables, and the marker. That ends with the
//! command's own PID, so that whoever finds the marker after we were killed can tell the command, which goes on, from
//! what it left behind (a record of the run tells it too, but only where an administrator has made a place for records, and
//! to root alone). Nobody knows the PID before the fork, and nobody can change the environment after the exec, so
//! the child writes it in between. What it needs lies ready: it allocates nothing, takes no lock, and calls nothing but
//! `signal`, `pthread_sigmask`, `getpid` and `execve`, as POSIX asks of the child of a process with threads.
//!
//! It also looks for the program in PATH itself. `execvp` would hand a file that the kernel does not know to a shell,
//! also one that is made for another machine.
//!
//! Until the exec the child has our handlers too, which would swallow a Ctrl-C that the terminal sends to both of us. So
//! these signals wait while we fork, and the child puts their usual effect back before it lets them in
//! ([`crate::dispositions`]).
#![allow(unsafe_code, reason = "between fork and exec")]

use crate::{
    dispositions::{Held, let_in, without_our_handlers},
    model::MARKER,
};
use rustix::io::Errno;
use std::{
    env,
    ffi::{OsStr, OsString, c_char, c_int},
    io,
    os::unix::{
        ffi::{OsStrExt, OsStringExt},
        process::CommandExt,
    },
    path::Path,
    process::{self, Child, Command},
    ptr,
    sync::atomic::{AtomicPtr, Ordering},
};

/// Variables with this start are ours: none but the marker reaches the command.
const PREFIX: &[u8] = b"GPURESID_";

/// Digits of the largest `u32`, and the zero that ends a string.
const ROOM: usize = 11;

unsafe extern "C" {
    fn execve(file: *const c_char, arguments: *const *const c_char, environment: *const *const c_char) -> c_int;
}

/// Starts `program` with these arguments and the marker of this run, and with `more` in its environment.
pub(super) fn spawn(
    program: &OsStr,
    arguments: &[&OsStr],
    run_id: &str,
    more: &[(OsString, OsString)],
) -> io::Result<Child> {
    let named = program.as_bytes().contains(&b'/');
    let files: Vec<Vec<u8>> = candidates(program).into_iter().map(ended).collect();
    let arguments = List::new([program].into_iter().chain(arguments.iter().copied()).map(ToOwned::to_owned).map(ended));
    let inherited = env::vars_os()
        .filter(|(name, _)| !name.as_bytes().starts_with(PREFIX) && more.iter().all(|(other, _)| other != name));
    let variables = inherited.chain(more.iter().cloned()).map(|(name, value)| variable(&name, &value));
    let marker = variable(OsStr::new(MARKER), &value_without_pid(run_id));
    let digits = marker.len() - 1;
    let with_room = [marker, vec![0; ROOM]].concat();
    let mut environment = List::new([with_room].into_iter().chain(variables));
    let held = Held::back();
    let before = held.before;
    let in_the_child = move || {
        without_our_handlers();
        let_in(&before);
        environment.write_number_into_first(digits, process::id());
        let mut found = Errno::NOENT;
        for file in &files {
            // SAFETY: each of the three ends with a zero or a null pointer, and lives in this closure, which the child
            // keeps until it execs or exits.
            unsafe { execve(file.as_ptr().cast(), arguments.as_ptr(), environment.as_ptr()) };
            let error = io::Error::last_os_error();
            match error.raw_os_error().map(Errno::from_raw_os_error) {
                _ if named => return Err(error),
                // The next one may be there, and may be run, as in a shell.
                Some(
                    Errno::NOENT
                    | Errno::NOTDIR
                    | Errno::LOOP
                    | Errno::NAMETOOLONG
                    | Errno::STALE
                    | Errno::NODEV
                    | Errno::TIMEDOUT,
                ) => {}
                Some(Errno::ACCESS) => found = Errno::ACCESS,
                _ => return Err(error),
            }
        }
        Err(found.into())
    };
    let mut command = Command::new(program);
    // SAFETY: see the module for what the closure does.
    unsafe { command.pre_exec(in_the_child) };
    // Returns after the child's exec, or its end.
    command.spawn()
}

/// The files that a program's name may mean: itself if it has a slash, else one in each directory of PATH.
pub(super) fn candidates(program: &OsStr) -> Vec<OsString> {
    if program.as_bytes().contains(&b'/') || program.is_empty() {
        return vec![program.into()];
    }
    // The C library's own path where the variable is missing.
    let path = env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    env::split_paths(&path).map(|dir| Path::new(&dir).join(program).into_os_string()).collect()
}

/// Strings as `execve` takes them.
struct List {
    strings: Vec<Vec<u8>>,
    /// To each string, and null at the end. Atomic, because a bare pointer may not be sent to another thread.
    pointers: Vec<AtomicPtr<u8>>,
}

impl List {
    /// Of strings that end with a zero.
    fn new(strings: impl Iterator<Item = Vec<u8>>) -> Self {
        let mut strings: Vec<Vec<u8>> = strings.collect();
        let null = AtomicPtr::new(ptr::null_mut());
        let pointers = strings.iter_mut().map(|s| AtomicPtr::new(s.as_mut_ptr())).chain([null]).collect();
        Self { strings, pointers }
    }

    fn write_number_into_first(&mut self, at: usize, number: u32) {
        if let (Some(string), Some(pointer)) = (self.strings.first_mut(), self.pointers.first()) {
            write_number(string.get_mut(at..).unwrap_or_default(), number);
            pointer.store(string.as_mut_ptr(), Ordering::Relaxed);
        }
    }

    /// An `AtomicPtr` lies in memory as the pointer in it does.
    fn as_ptr(&self) -> *const *const c_char {
        self.pointers.as_ptr().cast()
    }
}

fn ended(string: OsString) -> Vec<u8> {
    let mut bytes = string.into_vec();
    bytes.push(0);
    bytes
}

fn variable(name: &OsStr, value: &OsStr) -> Vec<u8> {
    [name.as_bytes(), b"=", value.as_bytes(), b"\0"].concat()
}

/// Inside an outer run the marker's value is `outer:inner`. The command's PID follows.
fn value_without_pid(run_id: &str) -> OsString {
    let mut value = env::var_os(MARKER).filter(|outer| !outer.is_empty()).unwrap_or_default();
    if !value.is_empty() {
        value.push(":");
    }
    value.push(run_id);
    value.push("-");
    value
}

/// In decimal digits, from the start of `room`.
fn write_number(room: &mut [u8], number: u32) {
    let digits = number.checked_ilog10().unwrap_or(0);
    for (place, power) in room.iter_mut().zip((0..=digits).rev()) {
        *place = b'0' + u8::try_from(number / 10_u32.pow(power) % 10).unwrap_or(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_elsewhere() {
        for number in [0, 7, 10, 99, 4_194_304, u32::MAX] {
            let mut room = [0; ROOM];
            write_number(&mut room, number);
            let end = room.iter().position(|b| *b == 0).unwrap();
            assert_eq!(std::str::from_utf8(&room[..end]).unwrap(), number.to_string());
        }
    }
}
