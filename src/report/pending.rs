//! The one way in which a file is written: found out at once, before a run of hours, whether it can be, and put in place
//! in one step, so that nobody ever reads half a report and an old one survives a failure.
//!
//! What others prepared is neither followed, replaced nor taken over: a link or a file of theirs is refused, and no file
//! gets their owner or their mode. Where nothing is, the new file is linked, which fails over a name that was planted
//! meanwhile; a file of ours is exchanged, and what came out is looked at before it goes. The same rule is asked at
//! the beginning and at the end.

use super::{
    aside::{Aside, save},
    stream::Stream,
    walk::{Blocked, End, Entry, Spot, walk},
};
use crate::{error::hinted, text};
use rustix::{
    fs::{FileType, Mode, fchmod},
    io::Errno,
};
use std::{
    ffi::OsString,
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

/// Of an old one's mode, what a new text may have too: none of the bits that make programs special.
const KEPT: u32 = 0o777;
/// How often a place may change its kind at the last moment.
const ATTEMPTS: usize = 8;

/// A file that can be written.
#[derive(Debug)]
pub struct Pending {
    /// As the user named it.
    named: PathBuf,
    place: Place,
}

#[derive(Debug)]
enum Place {
    /// A new text, put in the target's place at the end.
    Beside(Aside),
    /// There is nothing to replace.
    Direct(Stream),
}

/// What is to be done with what is there.
#[derive(Debug)]
enum Target {
    Absent,
    /// A file that may be replaced, ours or in our own closed directory.
    File(Entry),
    /// A file on whose name something is mounted.
    Mounted(Entry),
    /// A pipe or a device.
    Stream(Entry),
}

impl Pending {
    /// Makes sure that `path` can be written, and leaves what is there now as it is.
    ///
    /// # Errors
    /// If it cannot be written, with what to do about it.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let shown = path.display();
        let place = match walk(path) {
            Ok(End::Spot(spot)) => Self::place(path, spot)?,
            Ok(End::Descriptor(number)) => Place::Direct(Stream::inherited(&number).ok_or_else(|| {
                let number = number.display();
                hinted(
                    format!("cannot write {shown}: descriptor {number} is not open here"),
                    format!("open it where you start gpuresid: {number}>FILE, or name a file"),
                )
            })?),
            Ok(End::Directory) => {
                return Err(hinted(
                    format!("cannot write {shown}: it is a directory"),
                    format!("name a file in it: {shown}/report.json"),
                ));
            }
            Err(blocked) => return Err(no_way(path, &blocked)),
        };
        Ok(Self { named: path.into(), place })
    }

    fn place(path: &Path, spot: Spot) -> anyhow::Result<Place> {
        let shown = path.display();
        let (found, in_place) = match target(&spot).map_err(|refusal| refusal.told(path))? {
            Target::Absent | Target::File(_) => {
                let directory = spot.shown.clone();
                let aside = Aside::create(spot).map_err(|error| cannot_create(path, &directory, &error))?;
                return Ok(Place::Beside(aside));
            }
            Target::Mounted(found) => (found, true),
            Target::Stream(found) => (found, false),
        };
        match Stream::open(&spot, &found, in_place) {
            Ok(stream) => Ok(Place::Direct(stream)),
            // Opening a pipe that nobody reads would wait for ever; here it is an error instead.
            Err(error) if error.raw_os_error() == Some(Errno::NXIO.raw_os_error()) => Err(hinted(
                format!("cannot write {shown}: nobody reads from this pipe"),
                "start the reader first, or name a file",
            )),
            Err(error) => Err(anyhow::Error::new(error).context(format!("cannot write {shown}"))),
        }
    }

    /// Writes the file and puts it in place.
    ///
    /// # Errors
    /// If writing or the last step fails; what was there before is then still there, and a text that is whole is kept
    /// beside it, with the command that moves it.
    pub fn write(self, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> anyhow::Result<()> {
        let named = self.named;
        let failed = |error: io::Error| not_written(&named, error);
        let mut new = match self.place {
            Place::Direct(stream) => {
                let mut text = Vec::new();
                fill(&mut text).map_err(failed)?;
                return stream.write(&text).map_err(|error| match stream {
                    Stream::InPlace(_) => kept_aside(&named, None, &error.to_string(), save(&mut &*text)),
                    _ => failed(error),
                });
            }
            Place::Beside(new) => new,
        };
        // Before the first byte: an old report may have been for its owner alone.
        if let Ok(Target::File(old)) = target(&new.spot) {
            take_after(&new, &old).map_err(failed)?;
        }
        let mut out = BufWriter::new(&new.file);
        fill(&mut out).and_then(|()| out.flush()).map_err(failed)?;
        drop(out);
        new.finish().map_err(failed)?;
        replace(&mut new).map_err(|why| {
            let target = new.spot.path();
            kept_aside(&named, Some(&target), &why, new.keep())
        })
    }

    /// The place of the file that will be replaced, to find out whether two reports go to the same one.
    pub(super) fn target(&self) -> Option<((u32, u32, u64), OsString)> {
        match &self.place {
            Place::Direct(_) => None,
            Place::Beside(new) => Some((new.spot.above().ok()?.id, new.spot.name.clone())),
        }
    }
}

/// Whether a file with something in it is there, which will be replaced.
pub(super) fn is_there(path: &Path) -> bool {
    let Ok(End::Spot(spot)) = walk(path) else { return false };
    spot.entry().ok().flatten().is_some_and(|found| found.kind == FileType::RegularFile && found.size > 0)
}

/// Why something is left alone.
#[derive(Debug)]
enum Refusal {
    /// It belongs to this user.
    Theirs(u32),
    Directory,
    NoFile,
    Unseen(Errno),
}

impl Refusal {
    fn told(&self, path: &Path) -> anyhow::Error {
        let message = format!("cannot write {}: {self}", path.display());
        match self {
            Self::Theirs(_) => hinted(message, "name a file that does not exist yet, or one of your own"),
            Self::Directory | Self::NoFile | Self::Unseen(_) => hinted(message, "name a file"),
        }
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Theirs(uid) => write!(f, "it belongs to another user (user id {uid})"),
            Self::Directory => f.write_str("it is a directory"),
            Self::NoFile => f.write_str("it is neither a file, a pipe nor a terminal"),
            Self::Unseen(error) => io::Error::from(*error).fmt(f),
        }
    }
}

/// The rule.
fn target(spot: &Spot) -> Result<Target, Refusal> {
    let above = spot.above().map_err(Refusal::Unseen)?;
    let Some(found) = spot.entry().map_err(Refusal::Unseen)? else { return Ok(Target::Absent) };
    // In our own directory all that is there is ours to replace.
    let may_go = found.is_mine() || above.is_mine() && above.is_closed();
    match found.kind {
        FileType::RegularFile if found.is_mounted_in(&above) => {
            if found.is_mine() || above.is_closed() {
                Ok(Target::Mounted(found))
            } else {
                Err(Refusal::Theirs(found.uid))
            }
        }
        FileType::RegularFile if may_go => Ok(Target::File(found)),
        FileType::Fifo if may_go || above.vouches_for(&found) => Ok(Target::Stream(found)),
        // Only root makes devices.
        FileType::CharacterDevice => Ok(Target::Stream(found)),
        FileType::Directory => Err(Refusal::Directory),
        FileType::RegularFile | FileType::Fifo | FileType::Symlink if !found.is_mine() => {
            Err(Refusal::Theirs(found.uid))
        }
        _ => Err(Refusal::NoFile),
    }
}

/// Takes over who may read a file of ours that will be replaced. Another group gets no more than everybody.
fn take_after(new: &Aside, old: &Entry) -> io::Result<()> {
    if !old.is_mine() {
        return Ok(());
    }
    let same_group = std::os::unix::fs::MetadataExt::gid(&new.file.metadata()?) == old.gid;
    let mode = old.mode & KEPT;
    let mode = if same_group { mode } else { mode & !0o070 | (mode & 0o007) << 3 };
    Ok(fchmod(&new.file, Mode::from_raw_mode(mode))?)
}

/// Puts the text in place in one step.
fn replace(new: &mut Aside) -> Result<(), String> {
    for _ in 0..ATTEMPTS {
        match target(&new.spot).map_err(|refusal| refusal.to_string())? {
            Target::Absent => match new.put() {
                // Perhaps by another run of ours.
                Err(Errno::EXIST) => {}
                done => return done.map_err(|error| io::Error::from(error).to_string()),
            },
            Target::File(_) => {
                let done = new.exchange(|out| matches!(target(out), Ok(Target::File(_))));
                match done {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    done => return done.map_err(|error| error.to_string()),
                }
            }
            Target::Mounted(_) | Target::Stream(_) => return Err("something else was put in its place".into()),
        }
    }
    Err("what is there keeps changing".into())
}

fn not_written(named: &Path, error: io::Error) -> anyhow::Error {
    let too_large = error.kind() == io::ErrorKind::FileTooLarge;
    let error = anyhow::Error::new(error).context(format!("cannot write {}", named.display()));
    if !too_large {
        return error;
    }
    hinted(format!("{error:#}"), "it is larger than files may be here: ulimit -f says how large, in kB in bash")
}

fn no_way(path: &Path, blocked: &Blocked) -> anyhow::Error {
    let shown = path.display();
    match blocked {
        Blocked::Link { path: link, stranger: Some(uid) } => hinted(
            format!(
                "cannot write {shown}: {} is a link that another user made (user id {uid}); it is not followed",
                link.display()
            ),
            "name a file in a directory of your own",
        ),
        Blocked::Link { path: link, stranger: None } => hinted(
            format!(
                "cannot write {shown}: {} is a link in a directory that others may write to; it is not followed",
                link.display()
            ),
            "name the place that it leads to",
        ),
        Blocked::At(at, error) => {
            // What is missing is said as it was typed.
            let above = path.parent().filter(|above| !above.as_os_str().is_empty());
            let directory = if *error == Errno::NOENT { above.unwrap_or(at) } else { at };
            cannot_create(path, directory, &io::Error::from(*error))
        }
    }
}

/// A text that is whole and could not be put in place: where it is, and how to get it to a place.
fn kept_aside(named: &Path, target: Option<&Path>, why: &str, kept: Option<PathBuf>) -> anyhow::Error {
    let message = format!("cannot write {}: {why}", named.display());
    let Some(kept) = kept else { return anyhow::Error::msg(message) };
    let message = format!("{message}; the text is in {}", kept.display());
    let word = |path: &Path| text::shell_word(path.to_str()?);
    let step = || {
        let target = target?;
        let directory = target.parent()?;
        if !directory.exists() {
            return Some(format!("mkdir -p {} && mv {} {}", word(directory)?, word(&kept)?, word(target)?));
        }
        // What is in the way stays.
        let free = if target.is_dir() {
            target.join("report.json")
        } else {
            let mut name = target.as_os_str().to_owned();
            name.push(".new");
            name.into()
        };
        Some(format!("mv {} {}", word(&kept)?, word(&free)?))
    };
    match step() {
        Some(step) => hinted(message, format!("move it to a place: {step}")),
        None => anyhow::Error::msg(message),
    }
}

fn cannot_create(path: &Path, directory: &Path, error: &io::Error) -> anyhow::Error {
    let shown = path.display();
    let directory = directory.display();
    match error.kind() {
        io::ErrorKind::NotFound => hinted(
            format!("cannot write {shown}: there is no directory {directory}"),
            format!("make it first: mkdir -p {directory}"),
        ),
        io::ErrorKind::PermissionDenied => hinted(
            format!("cannot write {shown}: you may not create files in {directory}"),
            "name a file in a directory of your own, such as /tmp",
        ),
        io::ErrorKind::ReadOnlyFilesystem => hinted(
            format!("cannot write {shown}: {directory} is on a read-only file system"),
            "name a file in a directory that can be written, such as /tmp",
        ),
        io::ErrorKind::NotADirectory => {
            hinted(format!("cannot write {shown}: {directory} is not a directory"), "name a file in a directory")
        }
        // tempfile's own message names its random file, which helps nobody.
        kind => match error.raw_os_error() {
            Some(code) => anyhow::anyhow!("cannot write {shown}: {}", io::Error::from_raw_os_error(code)),
            None => anyhow::anyhow!("cannot write {shown}: {kind}"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    use std::{
        fs::{self, OpenOptions},
        io::Read,
        os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown, symlink},
        sync::atomic::{AtomicBool, Ordering},
    };

    fn write(path: &Path, text: &str) -> anyhow::Result<()> {
        Pending::open(path)?.write(|out| out.write_all(text.as_bytes()))
    }

    fn names(directory: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(directory).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn an_old_report_stays_until_the_new_one_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r.json");
        fs::write(&path, "old").unwrap();
        let pending = Pending::open(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        let failed = pending.write(|out| out.write_all(b"half").and(Err(io::Error::other("disk full"))));
        assert_eq!(format!("{:#}", failed.unwrap_err()), format!("cannot write {}: disk full", path.display()));
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        write(&path, "new").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(names(dir.path()), ["r.json"]);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o133, 0);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o600, 0o600);
    }

    #[test]
    fn nothing_appears_when_nothing_is_written() {
        let dir = tempfile::tempdir().unwrap();
        drop(Pending::open(&dir.path().join("r.json")).unwrap());
        assert_eq!(names(dir.path()), [""; 0]);
    }

    #[test]
    fn who_may_read_a_report_of_ours_stays_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r.json");
        for mode in [0o600, 0o640, 0o666, 0o4755] {
            fs::write(&path, "old").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            write(&path, "new").unwrap();
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, mode & 0o777);
        }
        if !rustix::process::geteuid().is_root() {
            return;
        }
        // Another group's report: that group is not given the new one, nor more than everybody has.
        for (mode, now) in [(0o640, 0o600), (0o664, 0o644), (0o646, 0o666)] {
            chown(&path, None, Some(65_533)).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            write(&path, "new").unwrap();
            let found = fs::metadata(&path).unwrap();
            assert_eq!((found.mode() & 0o7777, found.gid()), (now, rustix::process::getegid().as_raw()), "{mode:o}");
        }
        // In our own directory another's file is replaced, and nothing of him is taken over.
        chown(&path, Some(65_534), None).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        write(&path, "new").unwrap();
        let found = fs::metadata(&path).unwrap();
        assert_eq!((found.uid(), found.mode() & 0o133), (0, 0));
    }

    #[test]
    fn a_text_that_finds_its_place_taken_is_kept_with_the_command_that_moves_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("it's r.json");
        let pending = Pending::open(&path).unwrap();
        fs::create_dir(&path).unwrap();
        let error = pending.write(|out| out.write_all(b"report")).unwrap_err();
        assert!(error.to_string().contains("directory") && error.to_string().contains("; the text is in /"), "{error}");
        let hint = crate::error::hint(&error).unwrap();
        let command = hint.strip_prefix("move it to a place: ").unwrap();
        let moved = std::process::Command::new("sh").args(["-c", command]).status().unwrap();
        assert!(moved.success(), "{command}");
        assert_eq!(fs::read_to_string(path.join("report.json")).unwrap(), "report");
        assert_eq!(names(dir.path()), ["it's r.json"]);
    }

    #[test]
    fn a_link_stays_and_its_target_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("sub")).unwrap();
        symlink("sub/real.json", dir.path().join("link.json")).unwrap();
        for text in ["first", "second"] {
            write(&dir.path().join("link.json"), text).unwrap();
            assert_eq!(fs::read_to_string(dir.path().join("sub/real.json")).unwrap(), text);
        }
        assert!(fs::symlink_metadata(dir.path().join("link.json")).unwrap().is_symlink());
    }

    /// `turned` becomes a link of another user's to `target` and back, all the time.
    fn turning(turned: &str, target: &str) {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let (victim, way, trap) = (dir.path().join("victim"), dir.path().join("way"), dir.path().join("trap"));
        fs::create_dir(&victim).unwrap();
        fs::write(victim.join("r.json"), "precious").unwrap();
        fs::create_dir(&way).unwrap();
        for open in [dir.path(), &way] {
            fs::set_permissions(open, fs::Permissions::from_mode(0o777)).unwrap();
        }
        let path = way.join("r.json");
        fs::write(&path, "old").unwrap();
        symlink(dir.path().join(target), &trap).unwrap();
        lchown(&trap, Some(65_534), None).unwrap();
        let turned = dir.path().join(turned);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let _ = renameat_with(CWD, &trap, CWD, &turned, RenameFlags::EXCHANGE);
                }
            });
            let (mut written, mut refused) = (0, 0);
            for _ in 0..20_000 {
                if write(&path, "new").is_ok() {
                    written += 1
                } else {
                    refused += 1
                }
                if written > 100 && refused > 100 {
                    break;
                }
            }
            over.store(true, Ordering::Relaxed);
            assert!(written > 0 && refused > 0, "{written} written, {refused} refused");
        });
        assert_eq!(names(&victim), ["r.json"]);
        assert_eq!(fs::read_to_string(victim.join("r.json")).unwrap(), "precious");
    }

    #[test]
    fn a_directory_that_turns_into_a_link_leads_nowhere() {
        turning("way", "victim");
    }

    #[test]
    fn a_report_that_turns_into_a_link_leads_nowhere() {
        turning("way/r.json", "victim/r.json");
    }

    #[test]
    fn directories_and_missing_directories_are_refused_with_a_way_out() {
        let dir = tempfile::tempdir().unwrap();
        let shown = dir.path().display();
        let error = Pending::open(dir.path()).unwrap_err();
        assert_eq!(
            crate::error::display(&error),
            format!("error: cannot write {shown}: it is a directory\n\nhint: name a file in it: {shown}/report.json\n")
        );
        let error = Pending::open(&dir.path().join("no/r.json")).unwrap_err();
        assert_eq!(
            crate::error::display(&error),
            format!(
                "error: cannot write {shown}/no/r.json: there is no directory {shown}/no\n\n\
                 hint: make it first: mkdir -p {shown}/no\n"
            )
        );
    }

    #[test]
    fn devices_and_pipes_are_written_directly() {
        write(Path::new("/dev/null"), "x").unwrap();
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0).unwrap();
        let error = Pending::open(&fifo).unwrap_err();
        assert_eq!(format!("{error:#}"), format!("cannot write {}: nobody reads from this pipe", fifo.display()));
        // Linux lets one open a pipe for reading and writing without waiting for the other end.
        let mut reader = OpenOptions::new().read(true).write(true).open(&fifo).unwrap();
        write(&fifo, "report").unwrap();
        let mut text = [0; 6];
        reader.read_exact(&mut text).unwrap();
        assert_eq!(&text, b"report");
    }

    #[test]
    fn an_inherited_descriptor_is_written_and_never_replaced() {
        use std::os::fd::AsRawFd;
        let mut file = tempfile::tempfile().unwrap();
        let path = PathBuf::from(format!("/dev/fd/{}", file.as_raw_fd()));
        assert!(Pending::open(&path).is_err(), "a file of our own is none that was handed to us");
        rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::empty()).unwrap();
        write(&path, "report").unwrap();
        write(&path, " two").unwrap();
        let mut text = String::new();
        std::io::Seek::rewind(&mut file).unwrap();
        file.read_to_string(&mut text).unwrap();
        // The place in the file is shared with whoever opened it.
        assert_eq!(text, "report two");
    }
}
