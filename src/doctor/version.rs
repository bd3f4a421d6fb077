//! Versions of drivers, of CUDA and of PyTorch: numbers between dots, whatever follows them.

use serde::{Deserialize, Deserializer};
use std::{cmp::Ordering, fmt};

/// `580.159.04`, `13.0`, `2.11.0`: compared number by number, missing ones count as 0.
#[derive(Debug, Clone)]
pub struct Version {
    numbers: Vec<u32>,
    text: String,
}

impl Version {
    /// Reads the numbers at the start of `text`: of `2.11.0+cu130` and `2.9.0a0+git1234` too. What stands before a
    /// release counts as that release. `None` if there is no number.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
        let numbers: Vec<u32> = text.get(..end)?.split('.').map_while(|part| part.parse().ok()).collect();
        (!numbers.is_empty()).then(|| Self { numbers, text: text.into() })
    }

    /// The first number.
    pub fn major(&self) -> u32 {
        self.numbers.first().copied().unwrap_or(0)
    }

    /// The second number.
    pub fn minor(&self) -> u32 {
        self.numbers.get(1).copied().unwrap_or(0)
    }

    /// Whether it is a release and not what stands before or beside one: `2.11.0+cu130` is, `2.9.0a0+git1234` is not.
    pub fn is_release(&self) -> bool {
        let end = self.text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(self.text.len());
        self.text.get(end..).is_none_or(|rest| rest.is_empty() || rest.starts_with('+'))
    }

    /// The release without build or pre-release: `2.11.0` of `2.11.0+cu130`.
    pub fn release(&self) -> String {
        self.numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(".")
    }
}

impl PartialEq for Version {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Version {}

impl PartialOrd for Version {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Version {
    fn cmp(&self, other: &Self) -> Ordering {
        let most = self.numbers.len().max(other.numbers.len());
        let at = |version: &Self, place: usize| version.numbers.get(place).copied().unwrap_or(0);
        (0..most).map(|place| at(self, place).cmp(&at(other, place))).find(|o| o.is_ne()).unwrap_or(Ordering::Equal)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

impl<'de> Deserialize<'de> for Version {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        Self::parse(&text).ok_or_else(|| serde::de::Error::custom(format!("`{text}` is no version")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_number() {
        let v = |text: &str| Version::parse(text).unwrap();
        assert!(v("2.11.0+cu130") > v("2.9.1"));
        assert!(v("450.80.02") < v("450.102"));
        assert_eq!(v("2.1"), v("2.1.0a0+git1234"));
        assert_eq!(v("580.159.04").major(), 580);
        assert_eq!((v("2.11.0+cu130").minor(), v("2").minor()), (11, 0));
        for (text, is) in [("2.11.0", true), ("2.11.0+cu130", true), ("2.9.0a0+git1", false), ("2.12.0.dev1", false)] {
            assert_eq!(v(text).is_release(), is, "{text}");
        }
        assert_eq!(v("2.11.0+cu130").release(), "2.11.0");
        assert_eq!(v("2.11.0+cu130").to_string(), "2.11.0+cu130");
        for text in ["", "none", "cu130", "+1"] {
            assert!(Version::parse(text).is_none(), "{text}");
        }
    }
}
