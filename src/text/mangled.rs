//! Texts as a stranger, a damaged disk or a later kernel might write them: real ones, mangled; and pure noise. For the
//! tests of whatever reads such texts. `PROPTEST_CASES` sets how many each test draws.

use proptest::prelude::*;

/// One change of a text.
#[derive(Debug, Clone)]
enum Change {
    Replace(prop::sample::Index, u8),
    Cut(prop::sample::Index, usize),
    Insert(prop::sample::Index, Vec<u8>),
    Repeat(prop::sample::Index, usize, usize),
    End(prop::sample::Index),
    /// The number that stands there, if one does, becomes another.
    Number(prop::sample::Index, String),
}

/// What no file should hold, and some of what it may.
const NUMBERS: [&str; 8] =
    ["0", "-1", "4294967296", "18446744073709551615", "18446744073709551616", "9e99", "", "00000000000001"];

fn change() -> impl Strategy<Value = Change> {
    let at = || any::<prop::sample::Index>();
    prop_oneof![
        (at(), any::<u8>()).prop_map(|(at, byte)| Change::Replace(at, byte)),
        (at(), 0..64_usize).prop_map(|(at, length)| Change::Cut(at, length)),
        (at(), prop::collection::vec(any::<u8>(), 0..32)).prop_map(|(at, bytes)| Change::Insert(at, bytes)),
        (at(), 1..64_usize, 1..64_usize).prop_map(|(at, length, times)| Change::Repeat(at, length, times)),
        at().prop_map(Change::End),
        (at(), prop::sample::select(NUMBERS.as_slice())).prop_map(|(at, number)| Change::Number(at, number.into())),
    ]
}

fn apply(text: &mut Vec<u8>, change: Change) {
    let place = |at: prop::sample::Index, text: &[u8]| if text.is_empty() { 0 } else { at.index(text.len()) };
    match change {
        Change::Replace(at, byte) => {
            let at = place(at, text);
            if let Some(old) = text.get_mut(at) {
                *old = byte;
            }
        }
        Change::Cut(at, length) => {
            let at = place(at, text);
            text.drain(at..text.len().min(at + length));
        }
        Change::Insert(at, bytes) => {
            let at = place(at, text);
            text.splice(at..at, bytes);
        }
        Change::Repeat(at, length, times) => {
            let at = place(at, text);
            let part = text[at..text.len().min(at + length)].repeat(times);
            text.splice(at..at, part);
        }
        Change::End(at) => text.truncate(place(at, text)),
        Change::Number(at, number) => {
            let at = place(at, text);
            let Some(start) = text[at..].iter().position(u8::is_ascii_digit).map(|found| at + found) else { return };
            let length = text[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
            text.splice(start..start + length, number.into_bytes());
        }
    }
}

/// One of these, changed up to eight times; or noise.
pub(crate) fn mangled(real: &'static [&'static str]) -> impl Strategy<Value = Vec<u8>> {
    let changed = (prop::sample::select(real), prop::collection::vec(change(), 0..8)).prop_map(|(text, changes)| {
        let mut text = text.as_bytes().to_vec();
        changes.into_iter().for_each(|change| apply(&mut text, change));
        text
    });
    prop_oneof![8 => changed, 1 => prop::collection::vec(any::<u8>(), 0..2048)]
}
