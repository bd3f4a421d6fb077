//! Foreign text made safe to show: a process chooses its own name and arguments, so they may hold escape sequences,
//! newlines, text that reads backwards, ten kilobytes, or a password. One place, because one forgotten caller is
//! enough for a terminal to be written to by a stranger.

#[cfg(test)]
pub(crate) mod mangled;
pub mod name;
pub mod program;
mod secrets;

use crate::model::Argv;
use std::{ffi::OsString, os::unix::ffi::OsStrExt};
use unicode_width::UnicodeWidthChar;

/// Longest command line that a report keeps, in characters.
const LONGEST_COMMAND: usize = 1000;
/// Longest argument vector that a file of ours keeps, in characters.
const LONGEST_ARGV: usize = 8000;

/// Whether a character would act on a terminal or on the reading order instead of being seen.
fn acts(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

fn push_escaped(out: &mut String, c: char) {
    match c {
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        c if c.is_ascii_control() => out.push_str(&format!("\\x{:02x}", u32::from(c))),
        c => out.push_str(&format!("\\u{{{:x}}}", u32::from(c))),
    }
}

/// `text` on one line, with everything that would act instead of being seen written as an escape.
pub fn clean(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if acts(c) { push_escaped(&mut out, c) } else { out.push(c) }
    }
    out
}

/// As [`clean`], but line ends stay: for texts of our own that have a stranger's words inside.
pub fn clean_lines(text: &str) -> String {
    text.lines().map(clean).collect::<Vec<_>>().join("\n")
}

/// Bytes from outside as text: what is no UTF-8 is written as `\xNN`, so that two names never look alike.
pub fn from_bytes(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        out.push_str(chunk.valid());
        for byte in chunk.invalid() {
            out.push_str(&format!("\\x{byte:02x}"));
        }
    }
    out
}

/// The last part of a path.
pub fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// `1`, `3-5`, `9`: numbers in order, those that follow each other as one.
pub fn ranges(numbers: &[u32]) -> Vec<String> {
    let mut numbers = numbers.to_vec();
    numbers.sort_unstable();
    numbers.dedup();
    let range = |run: &[u32]| match run {
        [only] => Some(only.to_string()),
        [first, .., last] => Some(format!("{first}-{last}")),
        [] => None,
    };
    numbers.chunk_by(|one, next| one + 1 == *next).filter_map(range).collect()
}

/// `1 GPU`, `2 GPUs`.
pub fn count(n: usize, one: &str, many: &str) -> String {
    if n == 1 { format!("1 {one}") } else { format!("{n} {many}") }
}

/// Columns that `text` takes on a terminal.
pub fn width(text: &str) -> usize {
    text.chars().filter_map(UnicodeWidthChar::width).sum()
}

/// `text` in at most `columns` columns, the cut marked by `…`.
pub fn shorten(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.into();
    }
    let mut out = String::new();
    let mut taken = 0;
    for c in text.chars() {
        let next = taken + c.width().unwrap_or(0);
        // One column is for the mark.
        if next + 1 > columns {
            break;
        }
        taken = next;
        out.push(c);
    }
    let mut out = out.trim_end().to_string();
    if columns > 0 {
        out.push('…');
    }
    out
}

/// Breaks `text` at spaces into lines of at most `columns` columns; a longer word stays whole, because a command or a
/// path that was cut cannot be pasted. `None`: one line.
pub fn wrap(text: &str, columns: Option<usize>) -> Vec<String> {
    let Some(columns) = columns else { return vec![text.into()] };
    fill(text.split(' '), columns)
}

/// As [`wrap`], for a line that says what to paste: a command, which stands in back ticks or between `: ` and `;` or the
/// end, stays whole even if it is longer than a line, because what a terminal breaks by itself can still be pasted.
pub fn wrap_around_commands(text: &str, columns: usize) -> Vec<String> {
    let words: Vec<&str> = text.split(' ').collect();
    let mut parts = Vec::new();
    let mut at = 0;
    while let Some(word) = words.get(at) {
        // A command in back ticks goes on up to the word that closes them.
        let opens = |word: &&str| word.matches('`').count() % 2 == 1;
        let closed = words.get(at + 1..).filter(|_| opens(word)).and_then(|rest| rest.iter().position(opens));
        let end = closed.map_or(at + 1, |further| at + 1 + further + 1);
        parts.push(words.get(at..end).unwrap_or_default().join(" "));
        at = end;
        let announced = word.ends_with(':') && words.get(at).is_none_or(|next| !next.starts_with('`'));
        let rest = words.get(at..).filter(|_| announced).unwrap_or_default();
        let end = rest.iter().position(|word| word.ends_with(';')).map_or(rest.len(), |last| last + 1);
        let command = rest.get(..end).unwrap_or_default().join(" ");
        if !command.is_empty() {
            parts.push(command);
            at += end;
        }
    }
    fill(parts.iter().map(String::as_str), columns)
}

fn fill<'a>(parts: impl Iterator<Item = &'a str>, columns: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = String::new();
    for part in parts {
        if !line.is_empty() && width(&line) + 1 + width(part) > columns {
            lines.push(std::mem::take(&mut line));
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(part);
    }
    lines.push(line);
    lines
}

/// A command line for reports: secrets hidden, made safe, cut at a length that still identifies it. A process without
/// one goes by its short name in brackets.
pub fn display_command(argv: &Argv, comm: &str) -> String {
    let argv = argv.shown();
    if argv.iter().all(String::is_empty) {
        return format!("[{}]", clean(comm));
    }
    // Programs that set their title leave empty arguments behind it.
    let end = argv.iter().rposition(|arg| !arg.is_empty()).map_or(0, |last| last + 1);
    let line = secrets::hide(argv.get(..end).unwrap_or(&argv)).join(" ");
    let cut: String = line.chars().take(LONGEST_COMMAND).collect();
    let mut shown = clean(&cut);
    if cut.len() < line.len() {
        shown.push('…');
    }
    shown
}

/// An argument vector for reports: secrets hidden and made safe, one argument each, cut at a length that still
/// identifies it. Doing it twice changes nothing more.
pub fn display_argv(argv: &Argv) -> Argv {
    argv.with(safe_words(argv.words()))
}

fn safe_words(argv: &[String]) -> Vec<String> {
    let mut room = LONGEST_ARGV;
    let mut shown = Vec::with_capacity(argv.len());
    for arg in secrets::hide(argv) {
        let arg = clean(&arg);
        let long = arg.chars().count();
        if long > room {
            shown.push(arg.chars().take(room).filter(|c| *c != '…').chain(['…']).collect());
            break;
        }
        room -= long;
        shown.push(arg);
    }
    shown
}

/// As [`display_argv`], for arguments as the system has them.
pub fn display_arguments(argv: &[OsString]) -> Argv {
    safe_words(&argv.iter().map(|arg| from_bytes(arg.as_bytes())).collect::<Vec<_>>()).into()
}

/// A foreign word as a part of a command to paste: quoted where a shell would act on it. `None` where it cannot be pasted
/// at all, because it holds what acts on a terminal.
pub fn shell_word(word: &str) -> Option<String> {
    // A word that begins with a dash would be taken for an option, quoted or not.
    if word.starts_with('-') { quoted(&format!("./{word}"), false) } else { quoted(word, true) }
}

/// A command line of our own as it is to be pasted, options included.
pub fn shell_line(words: &[String]) -> Option<String> {
    Some(words.iter().map(|word| quoted(word, true)).collect::<Option<Vec<_>>>()?.join(" "))
}

fn quoted(word: &str, may_be_bare: bool) -> Option<String> {
    let plain =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/' | ':' | '@' | '%' | '+' | ',' | '=');
    if word.chars().any(acts) {
        return None;
    }
    if may_be_bare && !word.is_empty() && word.chars().all(plain) {
        return Some(word.into());
    }
    Some(format!("'{}'", word.replace('\'', "'\\''")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn argv(args: &[&str]) -> Argv {
        args.iter().map(|a| (*a).into()).collect()
    }

    #[test]
    fn nothing_acts_on_the_terminal() {
        assert_eq!(clean("a\nb\tc\r\x1b[2J\u{9b}m\x07\u{7f}"), "a\\nb\\tc\\r\\x1b[2J\\u{9b}m\\x07\\x7f");
        assert_eq!(clean("x\u{202e}gpj.exe\u{2066}\u{200b}"), "x\\u{202e}gpj.exe\\u{2066}\\u{200b}");
        assert_eq!(clean("naïve 训练 🚀 'ok'"), "naïve 训练 🚀 'ok'");
        let once = clean("a\nb");
        assert_eq!(clean(&once), once);
    }

    #[test]
    fn bytes_that_are_no_text_are_shown() {
        assert_eq!(from_bytes(b"caf\xe9 \xff\xfe ok"), "caf\\xe9 \\xff\\xfe ok");
        assert_eq!(from_bytes("é".as_bytes()), "é");
    }

    #[test]
    fn numbers_that_follow_each_other_are_a_range() {
        assert_eq!(ranges(&[7, 3, 4, 5, 5, 9, 10]).join(", "), "3-5, 7, 9-10");
        assert_eq!(ranges(&[]), [""; 0]);
    }

    #[test]
    fn shortening_counts_columns_not_characters() {
        assert_eq!(shorten("python train.py", 15), "python train.py");
        assert_eq!(shorten("python train.py", 10), "python tr…");
        assert_eq!(shorten("python train.py", 8), "python…");
        assert_eq!(shorten("训练训练训练", 7), "训练训…");
        assert_eq!(width(&shorten("训练训练训练", 8)), 7);
        assert_eq!(shorten("abc", 0), "");
    }

    #[test]
    fn wrapping_keeps_words_whole() {
        assert_eq!(wrap("one two three", Some(7)), ["one two", "three"]);
        assert_eq!(wrap("/a/very/long/path x", Some(5)), ["/a/very/long/path", "x"]);
        assert_eq!(wrap("one two", None), ["one two"]);
    }

    #[test]
    fn a_command_to_paste_stays_on_one_line() {
        let hint = "load it first: sudo modprobe nvidia; else look: gpuresid doctor";
        assert_eq!(
            wrap_around_commands(hint, 24),
            ["load it first:", "sudo modprobe nvidia;", "else look:", "gpuresid doctor"]
        );
        assert_eq!(wrap_around_commands(hint, 80), [hint]);
        assert_eq!(wrap_around_commands("first do: a b c d", 3), ["first", "do:", "a b c d"]);
        assert_eq!(
            wrap_around_commands("look with `sudo gpuresid doctor --strict`, or first with: `a b` then go on", 20),
            ["look with", "`sudo gpuresid doctor --strict`,", "or first with: `a b`", "then go on"]
        );
        assert_eq!(wrap_around_commands("one ` is no command", 8), ["one ` is", "no", "command"]);
    }

    #[test]
    fn a_command_is_safe_short_and_without_secrets() {
        assert_eq!(
            display_command(&argv(&["python", "a b.py", "--token", "abc"]), "python"),
            "python a b.py --token ***"
        );
        assert_eq!(display_command(&argv(&["ray::IDLE", "", ""]), "ray"), "ray::IDLE");
        assert_eq!(display_command(&argv(&["sh", "-c", "a\n\x1b[31mb"]), "sh"), "sh -c a\\n\\x1b[31mb");
        let long = display_command(&argv(&["python", &"x".repeat(10_000)]), "python");
        assert_eq!(long.chars().count(), LONGEST_COMMAND + 1);
        assert!(long.ends_with("x…"));
        assert_eq!(display_command(&argv(&[]), "kworker\n"), "[kworker\\n]");
        assert_eq!(display_argv(&argv(&["a", "--token=x", "b\nc"])).words(), ["a", "--token=***", "b\\nc"]);
    }

    #[test]
    fn an_argument_vector_is_cut_once() {
        let long = argv(&["python", &"x".repeat(LONGEST_ARGV), "more"]);
        let once = display_argv(&long);
        assert_eq!((once.words().len(), once.words()[1].ends_with("x…")), (2, true));
        assert_eq!(once.words().concat().chars().count(), LONGEST_ARGV + 1);
        assert_eq!(display_argv(&once), once);
        let bytes = std::os::unix::ffi::OsStringExt::from_vec(b"caf\xe9\n".to_vec());
        assert_eq!(display_arguments(&[bytes]).words(), ["caf\\xe9\\n"]);
    }

    #[test]
    fn a_pasted_word_is_one_word() {
        for (word, quoted) in [
            ("/dev/shm/torch_1_2", "/dev/shm/torch_1_2"),
            ("a b", "'a b'"),
            ("$(reboot)", "'$(reboot)'"),
            ("it's; rm -rf ~", "'it'\\''s; rm -rf ~'"),
            ("-rf", "'./-rf'"),
            ("", "''"),
            ("*", "'*'"),
        ] {
            assert_eq!(shell_word(word).as_deref(), Some(quoted));
        }
        for word in ["a\nb", "\x1b[2J", "x\u{202e}y"] {
            assert_eq!(shell_word(word), None);
        }
        let line = argv(&["gpuresid", "-i", "0", "reclaim", "--report=a b.json", "--yes"]);
        assert_eq!(shell_line(line.words()).as_deref(), Some("gpuresid -i 0 reclaim '--report=a b.json' --yes"));
        assert_eq!(shell_line(argv(&["gpuresid", "a\nb"]).words()), None);
    }
}
