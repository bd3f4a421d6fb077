//! What of a text is hidden: quotations of a command line, single words, and paths below a home. Texts in, texts out.

use super::HIDDEN;

/// The program of a command line, without its directory: a home directory names its user.
pub(super) fn program(line: &str) -> &str {
    let first = line.split_whitespace().next().unwrap_or_default();
    first.rsplit('/').next().unwrap_or(first)
}

/// Replaces each quotation of `line` that goes beyond its program, however short it was cut.
pub(super) fn hide_quoted(text: &str, line: &str) -> String {
    let head = line.find(char::is_whitespace).map_or(line.len(), |at| at + 1);
    let Some(start) = line.get(..head).filter(|s| s.len() < line.len()) else { return text.to_owned() };
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(start) {
        let quoted = rest.get(at..).unwrap_or_default();
        let same: usize = quoted.chars().zip(line.chars()).take_while(|(a, b)| a == b).map(|(a, _)| a.len_utf8()).sum();
        out.push_str(rest.get(..at).unwrap_or_default());
        out.push_str(program(start));
        out.push(' ');
        if same > start.len() {
            out.push_str(HIDDEN);
        }
        rest = quoted.get(same..).unwrap_or_default();
    }
    out.push_str(rest);
    out
}

/// Replaces `word` where it stands alone.
pub(super) fn hide_word(text: &str, word: &str) -> String {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    let mut before = None;
    while let Some(at) = rest.find(word) {
        let (lead, found) = rest.split_at(at);
        let after = found.get(word.len()..).unwrap_or_default();
        let left = lead.chars().next_back().or(before);
        let alone =
            !(left.is_some_and(part) && word.starts_with(part) || after.starts_with(part) && word.ends_with(part));
        out.push_str(lead);
        out.push_str(if alone { HIDDEN } else { word });
        before = word.chars().next_back();
        rest = after;
    }
    out.push_str(rest);
    out
}

/// Where people's files are: a path below names them, whoever mentions it.
const HOMES: [&str; 4] = ["/home/", "/root/", "/Users/", "/users/"];

/// Replaces every path below a home, to its end: the closing quote, else the next space or mark.
pub(super) fn hide_homes(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = HOMES.iter().filter_map(|home| rest.find(home)).min() {
        let (lead, path) = rest.split_at(at);
        out.push_str(lead);
        out.push_str(HIDDEN);
        let end = match lead.chars().next_back().filter(|c| matches!(c, '\'' | '"' | '`')) {
            Some(quote) => path.find(quote),
            None => path.find(|c: char| c.is_whitespace() || "'\"`,;:()[]{}<>|&".contains(c)),
        };
        rest = path.get(end.unwrap_or(path.len())..).unwrap_or_default();
    }
    out.push_str(rest);
    out
}
