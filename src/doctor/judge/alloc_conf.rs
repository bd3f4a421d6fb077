//! The settings of PyTorch's allocator, `key:value,key:value`, read as PyTorch reads them: a wrong one stops a program
//! at its first CUDA call, long after it was started.

use crate::doctor::{
    table::{AllocatorOption, Table, Value},
    version::Version,
};

/// A setting that was understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Setting {
    /// Its name.
    pub(super) key: String,
    /// Its value as it is written.
    pub(super) value: String,
}

/// What is wrong with a setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Trouble {
    /// PyTorch refuses it.
    Refused(String),
    /// It works and does not do what one thinks.
    Doubtful(String),
}

/// Reads a value; `torch`: the installed version, if it is known.
pub(super) fn read(text: &str, table: &Table, torch: Option<&Version>) -> (Vec<Setting>, Vec<Trouble>) {
    let (mut settings, mut troubles) = (Vec::new(), Vec::new());
    for part in split(text) {
        let Some((key, value)) = part.split_once(':') else {
            let text = if part.is_empty() {
                "an empty setting before a comma".into()
            } else {
                format!("`{part}` has no value")
            };
            troubles.push(Trouble::Refused(text));
            continue;
        };
        match table.options.iter().find(|option| option.key == key) {
            None => troubles.push(match torch.filter(|torch| **torch > table.options_of) {
                Some(newer) => Trouble::Doubtful(format!(
                    "{}, as far as known here; PyTorch {} may have it",
                    unknown(key, table),
                    newer.release()
                )),
                None => Trouble::Refused(unknown(key, table)),
            }),
            Some(option) => {
                let taken = as_read(&option.value, value);
                if let Err(why) = allowed(&option.value, taken) {
                    troubles.push(Trouble::Refused(format!("{key}: {why}")));
                } else if taken != value {
                    troubles.push(Trouble::Doubtful(format!("{key}: `{value}` is read as {taken}")));
                } else if let (Some(since), Some(torch)) = (&option.since, torch)
                    && torch < since
                {
                    troubles.push(Trouble::Refused(format!(
                        "{key} is known since PyTorch {since}, and {} is installed",
                        torch.release()
                    )));
                }
                if matches!(&option.value, Value::Whole { least: 20, .. }) && value == "20" {
                    troubles.push(Trouble::Doubtful(format!(
                        "{key}:20 is refused by older versions, which want more than 20"
                    )));
                }
                settings.push(Setting { key: key.into(), value: value.into() });
            }
        }
    }
    let native = |setting: &&Setting| option(table, &setting.key).is_some_and(|option| option.native_only);
    if settings.iter().any(|s| s.key == "backend" && s.value == "cudaMallocAsync")
        && let Some(other) = settings.iter().find(native)
    {
        troubles.push(Trouble::Doubtful(format!("backend:cudaMallocAsync ignores {}", other.key)));
    }
    (settings, troubles)
}

fn option<'a>(table: &'a Table, key: &str) -> Option<&'a AllocatorOption> {
    table.options.iter().find(|option| option.key == key)
}

/// Splits at the commas that stand outside brackets. Blanks count for nothing, as in PyTorch.
fn split(text: &str) -> Vec<String> {
    let text: String = text.chars().filter(|c| !c.is_ascii_whitespace()).collect();
    // A comma at the end is taken.
    let text = text.strip_suffix(',').filter(|rest| !rest.is_empty()).unwrap_or(&text);
    if text.is_empty() {
        return Vec::new();
    }
    let (mut parts, mut depth) = (vec![String::new()], 0_u32);
    for c in text.chars() {
        match c {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        match parts.last_mut() {
            Some(part) if c != ',' || depth > 0 => part.push(c),
            _ => parts.push(String::new()),
        }
    }
    parts
}

fn unknown(key: &str, table: &Table) -> String {
    let near = table.options.iter().map(|o| (distance(key, &o.key), &o.key)).min().filter(|(d, _)| *d <= 3);
    match near {
        Some((_, name)) => format!("there is no option `{key}`; `{name}` is one"),
        None => format!("there is no option `{key}`"),
    }
}

/// The part of a number that PyTorch reads: its functions stop at the first character that does not belong to one.
fn as_read<'a>(value: &Value, text: &'a str) -> &'a str {
    let digits = |also: &str| text.trim_start_matches(|c: char| c.is_ascii_digit() || also.contains(c));
    let rest = match value {
        Value::Whole { .. } | Value::PowerOfTwo { .. } => digits(""),
        Value::Fraction { .. } if text.parse::<f64>().is_err() => digits("."),
        Value::Fraction { .. } => "",
        Value::OneOf { .. } | Value::Divisions => "",
    };
    text.strip_suffix(rest).filter(|number| !number.is_empty()).unwrap_or(text)
}

fn allowed(value: &Value, text: &str) -> Result<(), String> {
    match value {
        Value::Whole { least, unit } => match text.parse::<u64>() {
            Ok(n) if n >= *least => Ok(()),
            _ => Err(format!("`{text}` is not a whole number of {unit} of at least {least}")),
        },
        Value::Fraction { one_too } => match text.parse::<f64>() {
            Ok(n) if n > 0.0 && (n < 1.0 || *one_too && n <= 1.0) => Ok(()),
            _ => Err(format!("`{text}` is not between 0 and 1")),
        },
        Value::OneOf { values } if values.iter().any(|v| v == text) => Ok(()),
        Value::OneOf { values } => Err(format!("`{text}` is not one of {}", values.join(", "))),
        Value::PowerOfTwo { most } => match text.parse::<u64>() {
            Ok(n) if n.is_power_of_two() && n <= *most => Ok(()),
            _ => Err(format!("`{text}` is not a power of two up to {most}")),
        },
        Value::Divisions => divisions(text),
    }
}

fn divisions(text: &str) -> Result<(), String> {
    let power = |n: &str| n.parse::<u64>().is_ok_and(u64::is_power_of_two);
    let Some(list) = text.strip_prefix('[') else {
        return if power(text) { Ok(()) } else { Err(format!("`{text}` is not a power of two")) };
    };
    let Some(list) = list.strip_suffix(']') else { return Err("the list is not closed by ]".into()) };
    for pair in list.strip_suffix(',').unwrap_or(list).split(',') {
        let fits = pair.split_once(':').is_some_and(|(size, n)| (size == ">" || power(size)) && (n == "0" || power(n)));
        if !fits {
            return Err(format!("`{pair}` is not a pair of powers of two"));
        }
    }
    Ok(())
}

/// How many letters must change.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut before = i;
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
        for (j, y) in b.iter().enumerate() {
            let change = before + usize::from(x != *y);
            before = row.get(j + 1).copied().unwrap_or(0);
            let left = row.get(j).copied().unwrap_or(0);
            if let Some(cell) = row.get_mut(j + 1) {
                *cell = change.min(before + 1).min(left + 1);
            }
        }
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn troubles(text: &str, torch: Option<&str>) -> Vec<Trouble> {
        let torch = torch.and_then(Version::parse);
        read(text, &Table::built_in().unwrap(), torch.as_ref()).1
    }

    #[test]
    fn what_pytorch_takes_is_taken() {
        for text in [
            "",
            "expandable_segments:True",
            "expandable_segments:True,",
            " expandable_segments : True,\tbackend:native\n",
            "roundup_power2_divisions:[256:1,512:2,]",
            "max_split_size_mb:128, garbage_collection_threshold:0.8",
            "roundup_power2_divisions:[256:1,512:2,1024:4,>:8],expandable_segments:False",
            "roundup_power2_divisions:8",
            "backend:cudaMallocAsync",
            "pinned_num_register_threads:8,pinned_use_background_threads:True",
            "per_process_memory_fraction:1.0",
            "garbage_collection_threshold:8e-1",
        ] {
            assert_eq!(troubles(text, Some("2.11.0")), [], "{text}");
        }
    }

    #[test]
    fn what_pytorch_refuses_is_refused() {
        for (text, says) in [
            ("expandeable_segments:True", "`expandable_segments` is one"),
            ("expandable_segments:true", "`true` is not one of True, False"),
            ("expandable_segments", "has no value"),
            ("max_split_size_mb:8", "of at least 20"),
            ("max_split_size_mb:8MB", "not a whole number"),
            ("max_split_size_mb:MB", "not a whole number"),
            ("garbage_collection_threshold:80", "between 0 and 1"),
            ("garbage_collection_threshold:1.0", "between 0 and 1"),
            ("roundup_power2_divisions:3", "not a power of two"),
            ("roundup_power2_divisions:[256:3]", "not a pair"),
            ("roundup_power2_divisions:[256:2", "not closed"),
            ("backend:async", "native, cudaMallocAsync"),
            ("pinned_num_register_threads:256", "up to 128"),
            (",expandable_segments:True", "empty setting"),
            ("expandable_segments:True,,backend:native", "empty setting"),
            ("speed:fast", "no option `speed`"),
        ] {
            let found = troubles(text, None);
            let said = matches!(found.first(), Some(Trouble::Refused(why)) if why.contains(says));
            assert!(said && found.len() == 1, "{text}: {found:?}");
        }
    }

    #[test]
    fn options_newer_than_the_installed_version_are_refused() {
        let found = troubles("expandable_segments:True", Some("1.13.1+cu117"));
        assert_eq!(
            found,
            [Trouble::Refused("expandable_segments is known since PyTorch 2.1.0, and 1.13.1 is installed".into())]
        );
    }

    #[test]
    fn an_option_that_is_not_known_may_be_one_of_a_newer_version() {
        assert!(matches!(troubles("speed:fast", Some("2.11.0+cu130")).as_slice(), [Trouble::Refused(_)]));
        let found = troubles("speed:fast", Some("2.12.1"));
        assert!(
            matches!(found.as_slice(), [Trouble::Doubtful(why)] if why.ends_with("PyTorch 2.12.1 may have it")),
            "{found:?}"
        );
    }

    #[test]
    fn what_has_no_effect_is_doubtful() {
        let found = troubles("backend:cudaMallocAsync,max_split_size_mb:64", None);
        assert_eq!(found, [Trouble::Doubtful("backend:cudaMallocAsync ignores max_split_size_mb".into())]);
        let found = troubles("max_split_size_mb:64MB,garbage_collection_threshold:0.8x", None);
        assert!(
            matches!(found.as_slice(), [Trouble::Doubtful(a), Trouble::Doubtful(_)] if a.contains("read as 64")),
            "{found:?}"
        );
        assert!(matches!(troubles("max_split_size_mb:20", None).as_slice(), [Trouble::Doubtful(_)]));
    }

    #[test]
    fn distances() {
        for (a, b, n) in [("", "", 0), ("abc", "abc", 0), ("abc", "abd", 1), ("abc", "ab", 1), ("kitten", "sitting", 3)]
        {
            assert_eq!(distance(a, b), n, "{a} {b}");
        }
    }
}
