//! Why nobody gets a signal: as values, and all of their sentences.

use crate::{judge::systemctl, model::Unit, text};
use std::fmt;

/// Who uses the GPU through another, each with its name where that is known.
pub type Clients = Vec<(u32, Option<String>)>;

/// Why a process is never signalled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Never {
    /// `/proc` is of another PID namespace than ours: its numbers are not the kernel's to us.
    ForeignProc,
    /// PID 1.
    Init,
    /// gpuresid itself, or its helper.
    Ourselves,
    /// A process that we run below.
    OurAncestor,
    /// A thread of the kernel's.
    Kernel,
    /// A container's main process.
    ContainerMain,
    /// It lives in another PID namespace.
    OtherNamespace,
    /// In which PID namespace it lives may not be read, as of a process that took over its user's rights.
    UnknownNamespace,
    /// The main process of this service.
    UnitMain(Unit),
    /// It may be the main process of this service: systemd could not be asked.
    MayBeUnitMain(Unit),
    /// A terminal multiplexer, a login, or whatever else somebody's sessions hang on, by its name.
    Sessions,
    /// Others work in terminals that it keeps.
    Terminals,
    /// It has this console open.
    Console(String),
    /// It reads a keyboard or a mouse.
    Input,
    /// A display server, by its name.
    Display,
    /// Windows come through this socket of it.
    DisplaySocket(String),
    /// What hangs on its open files cannot be read.
    UnreadableFiles,
    /// It has no GPU open, and this process that it started, whose end was not asked for, lives.
    Manages {
        /// The one that runs below it.
        pid: u32,
        /// Its name.
        command: String,
        /// How many more.
        more: usize,
    },
    /// It has no more NVIDIA files than a monitor, and no list has it.
    OnlyWatches,
    /// These use the GPU through it.
    Serves(Clients),
}

/// Why no signal was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// It has ended.
    Gone,
    /// Its number belongs to somebody else by now.
    Reused(String),
    /// Its user is not the one that was meant.
    OtherUser(Option<u32>),
    /// It has no NVIDIA file open now, so it holds no GPU memory.
    NoNvidiaFile,
    /// Nobody below it has an NVIDIA file open now.
    SupervisesNobody,
    /// It does not descend from us.
    NoDescendant,
    /// It is one of those that are never signalled.
    Never(Never),
    /// It could not be looked at.
    NotSeen(String),
    /// The system does not let us.
    NotAllowed,
    /// The system refuses for another reason.
    Failed(String),
}

impl Never {
    /// People's sessions hang on it, and so all that runs below it.
    pub const fn keeps_sessions(&self) -> bool {
        matches!(
            self,
            Self::Sessions
                | Self::Terminals
                | Self::Console(_)
                | Self::Input
                | Self::Display
                | Self::DisplaySocket(_)
                | Self::UnitMain(_)
                | Self::ContainerMain
        )
    }
}

impl fmt::Display for Never {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ForeignProc => f.write_str(
                "this /proc shows another PID namespace, whose numbers mean other processes here; end it from inside \
                 that one",
            ),
            Self::Init => f.write_str("it is PID 1"),
            Self::Ourselves => f.write_str("it is gpuresid itself"),
            Self::OurAncestor => f.write_str("gpuresid runs below it: ending it would end this command"),
            Self::Kernel => f.write_str("it is a thread of the kernel"),
            Self::ContainerMain => {
                f.write_str("it is a container's main process; if it is to end, stop the container (docker stop)")
            }
            Self::OtherNamespace => f.write_str(
                "it lives in another PID namespace (a container); end it from inside, or stop the container",
            ),
            Self::UnknownNamespace => f.write_str("the PID namespace that it lives in cannot be read by this user"),
            Self::UnitMain(unit) => {
                write!(f, "it is the main process of {}", named(unit))?;
                match systemctl("stop", unit) {
                    Some(stop) => write!(f, "; if it is to end: {stop}"),
                    None => f.write_str(", which only its service manager stops for good"),
                }
            }
            Self::MayBeUnitMain(unit) => {
                write!(f, "it may be the main process of {}, and systemd could not be asked", named(unit))?;
                match (systemctl("status", unit), systemctl("stop", unit)) {
                    (Some(status), Some(stop)) => write!(f, "; {status} tells, and {stop} ends all of it"),
                    _ => Ok(()),
                }
            }
            Self::Sessions => f.write_str("somebody's sessions hang on it: ending it would end all that runs in them"),
            Self::Terminals => f.write_str("it keeps terminals open, and ending it would end all that runs in them"),
            Self::Console(name) => write!(f, "it keeps the text console {name} open that somebody may sit at"),
            Self::Input => f.write_str("it reads keyboards and mice: ending it would end a desktop"),
            Self::Display => f.write_str("it is part of the display: ending it would close every window"),
            Self::DisplaySocket(name) => {
                write!(f, "windows are drawn on the display that it keeps ({name}): ending it would close them all")
            }
            Self::UnreadableFiles => {
                f.write_str("what it has open cannot be read, so it may keep somebody's terminals")
            }
            Self::Manages { pid, command, more } => {
                let more = if *more > 0 { format!(" and {more} more") } else { String::new() };
                write!(
                    f,
                    "it has started others too (PID {pid}, {command}{more}), and ending it may end them. Stop the one that \
                     is meant as this program does that, or end that one alone"
                )
            }
            Self::OnlyWatches => {
                f.write_str("it only watches the GPU, as a monitor does: it holds no memory there, and no list has it")
            }
            Self::Serves(clients) => {
                let shown = |name: &Option<String>| name.as_ref().map(|name| format!(" ({name})")).unwrap_or_default();
                let clients: Vec<String> = clients.iter().map(|(pid, n)| format!("PID {pid}{}", shown(n))).collect();
                write!(f, "it serves others, who would lose the GPU with it: {}", clients.join(", "))
            }
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone => f.write_str("it has ended"),
            Self::Reused(command) => write!(f, "its number belongs to another process by now (`{command}`)"),
            Self::OtherUser(Some(uid)) => write!(f, "it belongs to user {uid} now"),
            Self::OtherUser(None) => f.write_str("its user cannot be read"),
            Self::NoNvidiaFile => f.write_str("it has no NVIDIA file open, so it holds no GPU memory"),
            Self::SupervisesNobody => f.write_str("nothing that it started has an NVIDIA file open now"),
            Self::NoDescendant => f.write_str("it does not descend from the command"),
            Self::Never(never) => never.fmt(f),
            Self::NotSeen(why) => write!(f, "it could not be looked at: {why}"),
            Self::NotAllowed => f.write_str("this user may not signal it"),
            Self::Failed(why) => write!(f, "the signal could not be sent: {why}"),
        }
    }
}

/// Whoever may make control groups gives them what names he likes.
fn named(unit: &Unit) -> String {
    let name = text::clean(&unit.name);
    if unit.of_user { format!("the user unit {name}") } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_is_stopped_by_its_own_manager_and_by_a_name_that_can_be_pasted() {
        let main = |name: &str, of_user| Never::UnitMain(Unit { name: name.into(), of_user }).to_string();
        assert_eq!(
            main("triton.service", false),
            "it is the main process of triton.service; if it is to end: systemctl stop triton.service"
        );
        assert_eq!(
            main("jupyter.service", true),
            "it is the main process of the user unit jupyter.service; if it is to end: systemctl --user stop jupyter.service"
        );
        // As systemd writes odd letters, and as nobody means well.
        assert!(main("a\\x2db.service", false).ends_with("systemctl stop 'a\\x2db.service'"));
        assert!(main("x;reboot;.service", false).ends_with("systemctl stop 'x;reboot;.service'"));
        let acts = main("x\u{1b}[31m.service", false);
        assert!(!acts.contains('\u{1b}') && !acts.contains("systemctl"), "{acts}");
        let may_be = Never::MayBeUnitMain(Unit { name: "a.service".into(), of_user: false }).to_string();
        assert!(may_be.ends_with("systemctl status a.service tells, and systemctl stop a.service ends all of it"));
    }
}
