//! One message at a time, with open files beside it, over the socket between client and nursery. Message boundaries
//! are kept by the kernel (`SOCK_SEQPACKET`).

use rustix::{
    io::{Errno, retry_on_intr},
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
        SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
    },
};
use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

/// Orders and reports are short.
const LONGEST: usize = 1024;
/// Files beside one message.
const MOST_FILES: usize = 2;

/// Two connected ends, close-on-exec.
pub(super) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Sends one message. A peer that is gone is an error and no signal.
pub(super) fn say(to: &impl AsFd, text: &str) -> io::Result<()> {
    say_with(to, text, &[])
}

/// Sends one message with open files beside it.
pub(super) fn say_with(to: &impl AsFd, text: &str, files: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FILES))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() && !beside.push(SendAncillaryMessage::ScmRights(files)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let text = &text.as_bytes()[..text.len().min(LONGEST)];
    retry_on_intr(|| sendmsg(to, &[IoSlice::new(text)], &mut beside, SendFlags::NOSIGNAL))?;
    Ok(())
}

/// Waits for the next message; `None` when the other end is closed.
pub(super) fn hear(from: &impl AsFd) -> io::Result<Option<(String, Vec<OwnedFd>)>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FILES))];
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    let mut text = [0; LONGEST];
    let got = retry_on_intr(|| recvmsg(from, &mut [IoSliceMut::new(&mut text)], &mut beside, RecvFlags::CMSG_CLOEXEC));
    let length = match got {
        Ok(message) => message.bytes,
        Err(Errno::CONNRESET) => 0,
        Err(e) => return Err(e.into()),
    };
    let mut files = Vec::new();
    for message in beside.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            files.extend(received);
        }
    }
    if length == 0 {
        return Ok(None);
    }
    Ok(Some((String::from_utf8_lossy(text.get(..length).unwrap_or_default()).into_owned(), files)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        fs::File,
        io::{Read, Write},
    };

    #[test]
    fn files_travel_beside_the_message_and_the_end_is_seen() {
        let (ours, theirs) = pair().expect("a socket pair");
        let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
        say_with(&ours, "start 1", &[writer.as_fd()]).expect("sent");
        say(&ours, "kill 1").expect("sent");
        drop((ours, writer));
        let (text, files) = hear(&theirs).expect("heard").expect("a message");
        assert_eq!((text.as_str(), files.len()), ("start 1", 1));
        for file in files {
            File::from(file).write_all(b"through").expect("written");
        }
        assert_eq!(hear(&theirs).expect("heard").map(|m| m.0), Some("kill 1".into()));
        assert!(hear(&theirs).expect("heard").is_none());
        let mut text = String::new();
        File::from(reader).read_to_string(&mut text).expect("read");
        assert_eq!(text, "through");
    }
}
