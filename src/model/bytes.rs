//! Amounts of memory and limits on them.

use serde::{Deserialize, Serialize};
use std::{fmt, iter::Sum, ops::Add, str::FromStr};

/// An amount of memory in bytes. Written as an integer in JSON, in IEC units for people.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bytes(pub u64);

impl Bytes {
    /// Nothing.
    pub const ZERO: Self = Self(0);

    /// `n` MiB.
    pub const fn mib(n: u64) -> Self {
        Self(n << 20)
    }

    /// `n` GiB.
    pub const fn gib(n: u64) -> Self {
        Self(n << 30)
    }

    /// `self - other`, never below 0.
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// The signed difference `self - other` in bytes.
    pub const fn minus(self, other: Self) -> i128 {
        self.0 as i128 - other.0 as i128
    }

    /// `n` bytes, 0 when `n` is negative, the largest amount when it does not fit.
    pub fn at_least_zero(n: i128) -> Self {
        Self(u64::try_from(n.max(0)).unwrap_or(u64::MAX))
    }
}

impl Add for Bytes {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl Sum for Bytes {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        iter.fold(Self::ZERO, Add::add)
    }
}

impl fmt::Display for Bytes {
    /// `0 B`, `512 KiB`, `3.5 MiB`, `5738 MiB`, `19.2 GiB`: MiB up to 10 GiB, because that is what people compare with
    /// nvidia-smi.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const KIB: f64 = 1024.0;
        #[expect(clippy::cast_precision_loss, reason = "for people; 53 bits of bytes are 8 PiB")]
        let n = self.0 as f64;
        let text = if self.0 < 1 << 10 {
            format!("{} B", self.0)
        } else if self.0 < 1 << 20 {
            format!("{:.0} KiB", n / KIB)
        } else if self.0 < 10 << 20 {
            format!("{:.1} MiB", n / KIB / KIB)
        } else if self.0 < 10 << 30 {
            format!("{:.0} MiB", n / KIB / KIB)
        } else {
            format!("{:.1} GiB", n / KIB / KIB / KIB)
        };
        f.pad(&text)
    }
}

/// Why a size or limit could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseSizeError(String);

impl fmt::Display for ParseSizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ParseSizeError {}

impl FromStr for Bytes {
    type Err = ParseSizeError;

    /// `16MiB`, `500M`, `20G`, `1.5GiB`, `4096B`. All units are binary and a unit is required (a bare `0` is fine).
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        let split = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
        let (number, unit) = text.split_at(split);
        let wrong = |why: &str| ParseSizeError(format!("{why}; write a size like 500MiB or 20GiB"));
        let shift = match unit.trim().to_ascii_lowercase().as_str() {
            "b" => 0,
            "k" | "kib" => 10,
            "m" | "mib" => 20,
            "g" | "gib" => 30,
            "t" | "tib" => 40,
            "" if number == "0" => 0,
            "" if !number.is_empty() => return Err(wrong("the unit is missing")),
            "kb" | "mb" | "gb" | "tb" => return Err(wrong("KB, MB and GB are ambiguous, units here are binary")),
            _ => return Err(wrong("not a size")),
        };
        if let Ok(whole) = number.parse::<u64>() {
            return whole
                .checked_shl(shift)
                .filter(|n| n >> shift == whole)
                .map(Self)
                .ok_or_else(|| wrong("too large"));
        }
        let value = number.parse::<f64>().map_err(|_| wrong("not a size"))?;
        #[expect(clippy::cast_precision_loss, reason = "a power of two is exact")]
        let bytes = value * (1u64 << shift) as f64;
        #[expect(clippy::cast_precision_loss, reason = "a rough bound")]
        if !bytes.is_finite() || bytes >= u64::MAX as f64 {
            return Err(wrong("too large"));
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked: digits and one dot only")]
        Ok(Self(bytes.round() as u64))
    }
}

/// A limit on memory: an amount, or a part of a device's total.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// So many bytes.
    Bytes(Bytes),
    /// So many percent (0–100) of the device's total memory.
    PercentOfTotal(f64),
}

impl Limit {
    /// The limit in bytes on a device with `total` bytes; `None` if it is a percentage and the total is unknown.
    pub fn on(self, total: Option<Bytes>) -> Option<Bytes> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                clippy::cast_precision_loss,
                reason = "a percentage between 0 and 100 of a device's memory"
            )]
            Self::PercentOfTotal(percent) => total.map(|t| Bytes((t.0 as f64 * percent / 100.0) as u64)),
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => bytes.fmt(f),
            Self::PercentOfTotal(percent) => write!(f, "{percent}% of the GPU"),
        }
    }
}

impl FromStr for Limit {
    type Err = ParseSizeError;

    /// A size, or a percentage such as `3%`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let Some(number) = text.trim().strip_suffix('%') else {
            return text.parse().map(Self::Bytes);
        };
        number
            .trim()
            .parse::<f64>()
            .ok()
            .filter(|p| (0.0..=100.0).contains(p))
            .map(Self::PercentOfTotal)
            .ok_or_else(|| ParseSizeError("a percentage lies between 0% and 100%".into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_binary_and_want_a_unit() {
        for (text, bytes) in [
            ("0", 0),
            ("16MiB", 16 << 20),
            ("16M", 16 << 20),
            ("16m", 16 << 20),
            ("20G", 20 << 30),
            ("1.5GiB", 3 << 29),
            ("4096B", 4096),
            (" 2 KiB ", 2048),
            ("1T", 1 << 40),
        ] {
            assert_eq!(text.parse::<Bytes>().unwrap(), Bytes(bytes), "{text}");
        }
        for text in
            ["", "16", "MiB", "-1MiB", "1e3MiB", "16MB", "16 GB", "1..5G", "99999999999999999999G", "nan", "20000000T"]
        {
            assert!(text.parse::<Bytes>().is_err(), "{text}");
        }
    }

    #[test]
    fn limits_take_percentages_of_the_device() {
        assert_eq!("3%".parse::<Limit>().unwrap().on(Some(Bytes(1000))), Some(Bytes(30)));
        assert_eq!("3%".parse::<Limit>().unwrap().on(None), None);
        for text in ["101%", "-1%", "%", "nan%", "5"] {
            assert!(text.parse::<Limit>().is_err(), "{text}");
        }
    }

    #[test]
    fn people_read_mib_up_to_10_gib() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (524_288, "512 KiB"),
            (Bytes::mib(3).0 + (1 << 18), "3.2 MiB"),
            (Bytes::mib(5738).0, "5738 MiB"),
            (Bytes::mib(19_660).0, "19.2 GiB"),
        ] {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
    }
}
