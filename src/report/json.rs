//! The JSON formats: pretty, snake_case, bytes as integers, `null` for unknown.

use serde::Serialize;
use std::io::{self, Write};

/// Writes a report, a status, a snapshot or an observation over several lines.
///
/// # Errors
/// If the writer fails.
pub fn pretty<T: Serialize>(value: &T, out: &mut dyn Write) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, value)?;
    out.write_all(b"\n")
}

/// Writes it on one line.
///
/// # Errors
/// If the writer fails.
pub fn line<T: Serialize>(value: &T, out: &mut dyn Write) -> io::Result<()> {
    serde_json::to_writer(&mut *out, value)?;
    out.write_all(b"\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Bytes;

    #[test]
    fn unknown_is_null_and_bytes_are_integers() {
        #[derive(Serialize)]
        struct Pair {
            used: Option<Bytes>,
            free: Option<Bytes>,
        }
        let mut out = Vec::new();
        line(&Pair { used: Some(Bytes::mib(1)), free: None }, &mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "{\"used\":1048576,\"free\":null}\n");
    }
}
