//! Pairs of a name and a value within an argument: JSON, `user=me,password=…`, `password:…`, and quoted values with
//! spaces, which a division into words would tear apart.

use super::{HIDDEN, is_secret_name};

/// `text` with the values of its secret names hidden.
pub(super) fn hide(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find([':', '=']) {
        let (lead, found) = rest.split_at(at);
        let (mark, value) = found.split_at(1);
        out.push_str(lead);
        out.push_str(mark);
        rest = value;
        if !ends_in_secret_name(lead) {
            continue;
        }
        let blank = value.len() - value.trim_start().len();
        let (space, value) = value.split_at(blank);
        let Some(quote) = value.chars().next().filter(|c| matches!(c, '"' | '\'')) else {
            // `Authorization: Bearer …`, and `--password=a,b` whose value is all the rest: words are for that.
            if blank == 0 && !(mark == "=" && lead.trim_start_matches('-').chars().all(is_of_name)) {
                let end = value.find(ends_value).unwrap_or(value.len());
                if end > 0 && !value.starts_with("//") {
                    out.push_str(HIDDEN);
                    rest = value.get(end..).unwrap_or_default();
                }
            }
            continue;
        };
        out.push_str(space);
        let inside = value.get(1..).unwrap_or_default();
        let end = closing(inside, quote).unwrap_or(inside.len());
        // A shell's quotes are gone with the blanks that they kept together.
        let kept = if mark == ":" { quote.to_string() } else { String::new() };
        out.push_str(&format!("{kept}{HIDDEN}{kept}"));
        rest = inside.get(end + 1..).unwrap_or_default();
    }
    out.push_str(rest);
    out
}

fn is_of_name(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '-' | '.')
}

fn ends_value(c: char) -> bool {
    c.is_whitespace() || ",;&}])'\"".contains(c)
}

/// Whether the name at the end of `lead` is secret. What stands behind a `/` is a path.
fn ends_in_secret_name(lead: &str) -> bool {
    let lead = lead.strip_suffix(['"', '\'']).unwrap_or(lead);
    let before = lead.trim_end_matches(is_of_name);
    let name = lead.get(before.len()..).unwrap_or_default();
    !before.ends_with('/') && is_secret_name(name)
}

/// Where the text that began behind `quote` is closed.
fn closing(text: &str, quote: char) -> Option<usize> {
    let mut escaped = false;
    text.char_indices().find_map(|(at, c)| {
        let closes = c == quote && !escaped;
        escaped = c == '\\' && !escaped;
        closes.then_some(at)
    })
}
