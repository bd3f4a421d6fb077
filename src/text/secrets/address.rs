//! Addresses in an argument: the login before the host, and the values of secret names after the `?`. They may stand
//! anywhere in it, and contain the `=` by which options are told apart.

use super::{HIDDEN, hide_value, is_secret_name};

/// Names in a query that are secret there and ordinary words elsewhere.
const SECRET_IN_QUERY: &[&str] = &["sig", "signature", "key", "x-amz-signature", "x-amz-credential"];

/// What ends an address in a longer text.
fn ends_address(c: char) -> bool {
    c.is_whitespace() || "'\"`<>()|".contains(c)
}

/// `word` with what is secret in its addresses hidden.
pub(super) fn hide(word: &str) -> String {
    let mut out = String::with_capacity(word.len());
    let mut rest = word;
    while let Some((scheme, after)) = rest.split_once("://") {
        out.push_str(scheme);
        out.push_str("://");
        let end = after.find(ends_address).unwrap_or(after.len());
        let end = after.find("://").map_or(end, |next| end.min(after.get(..next).map_or(next, start_of_scheme)));
        let (address, behind) = after.split_at(end);
        out.push_str(&without_secrets(address));
        rest = behind;
    }
    out.push_str(rest);
    out
}

/// Where the scheme at the end of `text` begins.
fn start_of_scheme(text: &str) -> usize {
    text.trim_end_matches(|c: char| c.is_ascii_alphanumeric() || "+-.".contains(c)).len()
}

/// An address without its scheme.
fn without_secrets(address: &str) -> String {
    let authority = address.find(['/', '?', '#']).unwrap_or(address.len());
    let (authority, rest) = address.split_at(authority);
    let mut out = match authority.rsplit_once('@') {
        Some((login, host)) => match login.split_once(':') {
            Some((user, _)) => format!("{}:{HIDDEN}@{host}", hide_value(user)),
            None => format!("{HIDDEN}@{host}"),
        },
        None => authority.to_owned(),
    };
    let Some((path, query)) = rest.split_once('?') else { return out + rest };
    out.push_str(path);
    out.push('?');
    for part in query.split_inclusive(['&', ';', '#']) {
        let end = part.trim_end_matches(['&', ';', '#']).len();
        let (pair, mark) = part.split_at(end);
        match pair.split_once('=') {
            Some((name, value)) if !value.is_empty() && is_secret_in_query(name) => {
                out.push_str(name);
                out.push('=');
                out.push_str(HIDDEN);
            }
            _ => out.push_str(pair),
        }
        out.push_str(mark);
    }
    out
}

fn is_secret_in_query(name: &str) -> bool {
    is_secret_name(name) || SECRET_IN_QUERY.iter().any(|secret| name.eq_ignore_ascii_case(secret))
}
