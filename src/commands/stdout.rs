//! Writing to standard output. A reader that has seen enough (`gpuresid | head`) is no error.

use anyhow::Context;
use std::io::{self, Write};

/// Whether anybody still reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reader {
    /// Yes.
    There,
    /// The other end of the pipe is closed.
    Gone,
}

/// Writes what `fill` writes, in one piece.
///
/// # Errors
/// If standard output cannot be written, but not if nobody reads it.
pub(super) fn print(fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> anyhow::Result<Reader> {
    let mut text = Vec::new();
    fill(&mut text).context("cannot put the output together")?;
    let mut stdout = io::stdout().lock();
    match stdout.write_all(&text).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(Reader::There),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Reader::Gone),
        Err(error) => Err(error).context("cannot write to standard output"),
    }
}
