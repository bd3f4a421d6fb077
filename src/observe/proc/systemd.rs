//! Which process systemd calls the main one of a service, asked of itself: over its bus, as `systemctl show -p MainPID`
//! does. Written out, because it is one call with two words, and because nothing may be started for it (while a command
//! is checked every child of ours counts). Whoever does not answer in time says nothing: the caller errs to the safe side.
//!
//! The socket is believed for what it is: the machine's is root's, a user's is that user's, who can answer what he likes
//! about services of his own.

use crate::model::Unit;
use rustix::{
    fs::{CWD, FileType, OFlags, fcntl_getfl, fcntl_setfl},
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with},
};
use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// So long systemd may take.
const PATIENCE: Duration = Duration::from_millis(500);
/// A longer answer is none of ours.
const MOST: usize = 1 << 20;

/// Whose services.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Manager {
    Machine,
    /// Of this user.
    User(u32),
}

/// A service, as the path of a control group tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Service<'a> {
    pub(super) manager: Manager,
    pub(super) name: &'a str,
    /// The path of its control group.
    pub(super) group: &'a str,
}

/// The service that a process in this control group is of. It may have groups of its own below its own one (`Delegate=`,
/// podman), and its main process in one of these.
pub(super) fn unit_of(cgroup: &str) -> Option<Service<'_>> {
    let mut group = cgroup;
    loop {
        let (above, name) = group.rsplit_once('/')?;
        if name.ends_with(".service") {
            let manager = |part: &str| part.strip_prefix("user@")?.strip_suffix(".service")?.parse().ok();
            let user = above.rsplit('/').find_map(manager);
            return Some(Service { manager: user.map_or(Manager::Machine, Manager::User), name, group });
        }
        // Other units are of no service, also where that is above them.
        if name.ends_with(".scope") || name.ends_with(".slice") {
            return None;
        }
        group = above;
    }
}

/// The same as a fact about a process.
pub fn service_of(cgroup: &str) -> Option<Unit> {
    unit_of(cgroup).map(|it| Unit { name: it.name.to_owned(), of_user: it.manager != Manager::Machine })
}

/// The main process of a service. `None`: it could not be asked, or there is none now. `run`: `/run`.
pub(super) fn main_pid(run: &Path, manager: Manager, unit: &str) -> Option<u32> {
    let until = Instant::now() + PATIENCE;
    let (socket, owner) = match manager {
        Manager::Machine => (run.join("dbus/system_bus_socket"), 0),
        Manager::User(uid) => (run.join(format!("user/{uid}/bus")), uid),
    };
    let mut bus = Bus { stream: open(&socket, owner)?, until };
    bus.greet()?;
    bus.send(1, "org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus", "Hello", &[])?;
    let words = ["org.freedesktop.systemd1.Service", "MainPID"];
    let path = format!("/org/freedesktop/systemd1/unit/{}", escaped(unit));
    bus.send(2, "org.freedesktop.systemd1", &path, "org.freedesktop.DBus.Properties", "Get", &words)?;
    bus.number(2).filter(|pid| *pid != 0)
}

/// A connection to the socket, if it is one and this user's. Connecting never waits.
fn open(socket: &PathBuf, owner: u32) -> Option<UnixStream> {
    let found = rustix::fs::statat(CWD, socket, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).ok()?;
    if FileType::from_raw_mode(found.st_mode) != FileType::Socket || found.st_uid != owner {
        return None;
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).ok()?;
    connect(&fd, &SocketAddrUnix::new(socket).ok()?).ok()?;
    fcntl_setfl(&fd, fcntl_getfl(&fd).ok()? - OFlags::NONBLOCK).ok()?;
    Some(UnixStream::from(fd))
}

/// A name as a part of an object's path.
fn escaped(name: &str) -> String {
    let plain = |at: usize, b: u8| b.is_ascii_alphabetic() || b.is_ascii_digit() && at > 0;
    let part = |(at, b): (usize, u8)| if plain(at, b) { char::from(b).to_string() } else { format!("_{b:02x}") };
    name.bytes().enumerate().map(part).collect()
}

struct Bus {
    stream: UnixStream,
    until: Instant,
}

impl Bus {
    /// We say who we are, which the kernel confirms.
    fn greet(&mut self) -> Option<()> {
        let uid: String = rustix::process::geteuid().as_raw().to_string().bytes().map(|b| format!("{b:02x}")).collect();
        self.write(format!("\0AUTH EXTERNAL {uid}\r\n").as_bytes())?;
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") && line.len() < 512 {
            line.extend(self.read(1)?);
        }
        line.starts_with(b"OK ").then_some(())?;
        self.write(b"BEGIN\r\n")
    }

    fn send(&mut self, serial: u32, to: &str, path: &str, interface: &str, member: &str, words: &[&str]) -> Option<()> {
        let mut body = Message::default();
        words.iter().for_each(|word| body.text(word));
        let mut fields = Message::default();
        for (code, kind, value) in
            [(1, "o", path), (2, "s", interface), (3, "s", member), (6, "s", to), (8, "g", &"s".repeat(words.len()))]
        {
            if kind == "g" && value.is_empty() {
                continue;
            }
            fields.pad(8);
            fields.0.push(code);
            fields.signature(kind);
            if kind == "g" { fields.signature(value) } else { fields.text(value) }
        }
        let mut whole = Message(vec![b'l', 1, 0, 1]);
        whole.number(body.0.len());
        whole.number(serial as usize);
        whole.number(fields.0.len());
        whole.0.extend(fields.0);
        whole.pad(8);
        whole.0.extend(body.0);
        self.write(&whole.0)
    }

    /// The number in the variant that answers this call.
    fn number(&mut self, call: u32) -> Option<u32> {
        loop {
            let head = self.read(16)?;
            // Both bytes of a number in the order that the other side chose.
            let word = |bytes: &[u8]| {
                let four = bytes.get(..4)?.try_into().ok()?;
                Some(if head[0] == b'l' { u32::from_le_bytes(four) } else { u32::from_be_bytes(four) })
            };
            let (body, fields) = (word(&head[4..])? as usize, word(&head[12..])? as usize);
            if body > MOST || fields > MOST {
                return None;
            }
            let fields = self.read(fields.next_multiple_of(8))?;
            let body = self.read(body)?;
            // Field 5 is the serial of the call: its number stands behind code and signature, at a multiple of four.
            let answers =
                fields.windows(8).step_by(4).any(|f| f[..4] == [5, 1, b'u', 0] && word(&f[4..]) == Some(call));
            match head[1] {
                2 if answers => return (body.get(..3)? == [1, b'u', 0]).then(|| word(body.get(4..)?))?,
                3 if answers => return None,
                _ => {}
            }
        }
    }

    fn left(&self) -> Option<Duration> {
        self.until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
    }

    fn write(&mut self, bytes: &[u8]) -> Option<()> {
        self.stream.set_write_timeout(Some(self.left()?)).ok()?;
        self.stream.write_all(bytes).ok()
    }

    fn read(&mut self, n: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; n];
        let mut at = 0;
        while at < n {
            self.stream.set_read_timeout(Some(self.left()?)).ok()?;
            match self.stream.read(&mut bytes[at..]) {
                Ok(0) => return None,
                Ok(more) => at += more,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => return None,
            }
        }
        Some(bytes)
    }
}

/// Bytes of a message in the making, little-endian.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn pad(&mut self, to: usize) {
        self.0.resize(self.0.len().next_multiple_of(to), 0);
    }

    fn number(&mut self, number: usize) {
        self.pad(4);
        self.0.extend(u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.number(text.len());
        self.0.extend(text.as_bytes());
        self.0.push(0);
    }

    fn signature(&mut self, signature: &str) {
        self.0.push(u8::try_from(signature.len()).unwrap_or(0));
        self.0.extend(signature.as_bytes());
        self.0.push(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_control_group_names_the_service_and_its_manager() {
        let told = |path| unit_of(path).map(|it| (it.manager, it.name, it.group));
        let own = "/system.slice/a.service";
        assert_eq!(told(own), Some((Manager::Machine, "a.service", own)));
        assert_eq!(told("/system.slice/a.service/supervisor"), Some((Manager::Machine, "a.service", own)));
        assert_eq!(told("/system.slice/a.service/runtime/x"), Some((Manager::Machine, "a.service", own)));
        let users = "/user.slice/user-1000.slice/user@1000.service/app.slice/b.service";
        assert_eq!(told(users), Some((Manager::User(1000), "b.service", users)));
        let manager = "/user.slice/user-1000.slice/user@1000.service";
        assert_eq!(told(manager), Some((Manager::Machine, "user@1000.service", manager)));
        // A terminal's tab, and a container of its own, are of no service, whatever is above them.
        for scope in ["app.slice/vte-spawn-1.scope", "init.scope", "user.slice/libpod-1.scope/container"] {
            assert_eq!(unit_of(&format!("{manager}/{scope}")), None, "{scope}");
        }
        assert_eq!(unit_of("/user.slice/user-1000.slice/session-3.scope"), None);
    }

    #[test]
    fn a_name_is_escaped_as_systemd_does() {
        assert_eq!(escaped("a-b@7.service"), "a_2db_407_2eservice");
        assert_eq!(escaped("7z"), "_37z");
    }

    /// A bus that answers every second call with these bytes behind the head.
    fn asked(answer: impl FnOnce(UnixStream) + Send + 'static) -> Option<u32> {
        let run = tempfile::tempdir().unwrap();
        let uid = rustix::process::geteuid().as_raw();
        let place = run.path().join(format!("user/{uid}"));
        std::fs::create_dir_all(&place).unwrap();
        let listener = std::os::unix::net::UnixListener::bind(place.join("bus")).unwrap();
        let server = std::thread::spawn(move || answer(listener.accept().unwrap().0));
        let found = main_pid(run.path(), Manager::User(uid), "a.service");
        server.join().unwrap();
        found
    }

    fn until(stream: &mut UnixStream, end: &[u8]) -> Vec<u8> {
        let mut text = Vec::new();
        while !text.windows(end.len()).any(|w| w == end) {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            text.push(byte[0]);
        }
        text
    }

    #[test]
    fn systemd_is_asked_and_believed() {
        let found = asked(|mut bus| {
            let greeting = until(&mut bus, b"\r\n");
            assert!(greeting.starts_with(b"\0AUTH EXTERNAL "));
            bus.write_all(b"OK 0123\r\n").unwrap();
            let call = until(&mut bus, b"MainPID\0");
            assert!(call.windows(11).any(|w| w == b"a_2eservice"));
            // A signal comes between, and the answer to the first call.
            let other = [b'l', 4, 0, 1, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0];
            let hello = [b'l', 2, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 8, 0, 0, 0, 5, 1, b'u', 0, 1, 0, 0, 0];
            let mut main = vec![b'l', 2, 0, 1, 8, 0, 0, 0, 2, 0, 0, 0, 8, 0, 0, 0, 5, 1, b'u', 0, 2, 0, 0, 0];
            main.extend([1, b'u', 0, 0, 70, 0, 0, 0]);
            bus.write_all(&[&other[..], &hello, &main].concat()).unwrap();
        });
        assert_eq!(found, Some(70));
    }

    #[test]
    fn who_does_not_answer_says_nothing() {
        assert_eq!(asked(drop), None, "it hangs up");
        assert_eq!(asked(|mut bus| bus.write_all(b"REJECTED\r\n").unwrap()), None);
        let asked_at = Instant::now();
        assert_eq!(asked(|_bus| std::thread::sleep(PATIENCE)), None);
        assert!(asked_at.elapsed() < 4 * PATIENCE);
        assert_eq!(main_pid(Path::new("/no/such"), Manager::Machine, "a.service"), None);
    }
}
