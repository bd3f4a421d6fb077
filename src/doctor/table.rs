//! What is known about PyTorch and CUDA by version: the data file `torch_table.json`, in which each row says where it
//! was published. A row without a source is kept, because people will ask, and judges nothing.

use super::version::Version;
use serde::Deserialize;

/// The whole table.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// What the table is.
    pub about: String,
    /// Which driver a CUDA needs, newest first.
    pub cuda: Vec<Cuda>,
    /// Since when a program for a newer CUDA of the same major runs on an older driver.
    pub minor_versions: MinorVersions,
    /// Where PyTorch's builds for one CUDA each are found, up to the name of an index.
    pub index_url: String,
    /// Which of them a version of PyTorch is built for, newest first.
    pub builds: Vec<Build>,
    /// Which CUDA is in the wheels that pip takes by itself.
    pub wheels: Vec<Wheel>,
    /// Since when there are which means to look at memory and to limit it.
    pub apis: Vec<Api>,
    /// The PyTorch whose allocator has these options; a newer one may have more.
    pub options_of: Version,
    /// The options of PyTorch's allocator.
    pub options: Vec<AllocatorOption>,
    /// Known faults.
    pub faults: Vec<Fault>,
}

/// The driver that a CUDA needs.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cuda {
    /// From this CUDA on, up to the next row.
    pub cuda: Version,
    /// The oldest driver on Linux.
    pub driver: Version,
    /// Where that is published.
    pub source: String,
    /// What else there is to say.
    pub note: Option<String>,
}

/// NVIDIA's minor version compatibility.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MinorVersions {
    /// The first CUDA with it.
    pub since: Version,
    /// Where that is published.
    pub source: String,
    /// What it does not hold for, and where that is published.
    pub note: String,
}

/// For which CUDAs a version of PyTorch is built.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Build {
    /// The first two numbers of the version.
    pub torch: Version,
    /// The indexes that have it.
    pub indexes: Vec<Index>,
    /// Where that is published.
    pub source: String,
    /// What else there is to say.
    pub note: Option<String>,
}

/// An index of builds for one CUDA, `cu130`.
#[derive(Debug, Clone)]
pub struct Index {
    /// As it is called.
    pub name: String,
    /// Its CUDA.
    pub cuda: Version,
}

impl<'de> Deserialize<'de> for Index {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let name = String::deserialize(from)?;
        // The last digit is the minor version.
        let cuda = name.strip_prefix("cu").and_then(|digits| {
            let (major, minor) = digits.split_at_checked(digits.len().checked_sub(1)?)?;
            Version::parse(&format!("{major}.{minor}"))
        });
        match cuda {
            Some(cuda) => Ok(Self { name, cuda }),
            None => Err(serde::de::Error::custom(format!("`{name}` is no index"))),
        }
    }
}

/// The CUDA of a wheel.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wheel {
    /// The version.
    pub torch: Version,
    /// Its CUDA.
    pub cuda: Version,
    /// Where that is published.
    pub source: String,
    /// What else there is to say.
    pub note: Option<String>,
}

/// Something that PyTorch can do with memory.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Api {
    /// What it is called.
    pub name: String,
    /// The first version with it.
    pub since: Version,
    /// Where that is published.
    pub source: String,
    /// What else there is to say.
    pub note: Option<String>,
}

/// An option of the allocator.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AllocatorOption {
    /// Its name.
    pub key: String,
    /// What may stand behind it.
    pub value: Value,
    /// `backend:cudaMallocAsync` ignores it.
    pub native_only: bool,
    /// The first version with it; `None`: not known.
    pub since: Option<Version>,
    /// Where that is published.
    pub source: String,
}

/// What an option takes.
#[derive(Debug, Clone, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Value {
    /// A whole number of some unit.
    Whole {
        /// The least.
        least: u64,
        /// Of what.
        unit: String,
    },
    /// A number above 0 and below 1.
    Fraction {
        /// 1 is allowed as well.
        one_too: bool,
    },
    /// One of these words, spelled so.
    OneOf {
        /// The words.
        values: Vec<String>,
    },
    /// 1, 2, 4 and so on.
    PowerOfTwo {
        /// The most.
        most: u64,
    },
    /// A power of two, or a list of them by size: `[256:1,512:2,>:4]`.
    Divisions,
}

/// A known fault of some versions.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// A stable name.
    pub id: String,
    /// The first version with it.
    pub from: Version,
    /// The first version without it again; `None`: there is none yet.
    pub before: Option<Version>,
    /// What has to be set for it to matter; `None`: nothing.
    pub needs: Option<Needs>,
    /// Where it is reported; `None`: nowhere, so it is never shown.
    pub source: Option<String>,
    /// What happens.
    pub text: String,
    /// What to do; text that starts with `-m` goes behind the interpreter.
    pub fix: Option<String>,
    /// How well that is known.
    pub note: Option<String>,
}

/// A setting that a fault needs.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Needs {
    /// Only if it is set through this variable and not through the other one.
    pub variable: Option<String>,
    /// The allocator's option.
    pub option: String,
    /// Its value.
    pub value: String,
    /// And one of these options as well; empty: none of them.
    pub together_with: Vec<String>,
}

impl Table {
    /// The table of this build.
    ///
    /// # Errors
    /// If the data file is not what this code expects, which a test prevents.
    pub fn built_in() -> anyhow::Result<Self> {
        use anyhow::Context as _;
        serde_json::from_str(include_str!("torch_table.json")).context("reading the built-in table of PyTorch versions")
    }

    /// The row for this CUDA; `None` if its major version is not known.
    pub fn driver_for(&self, cuda: &Version) -> Option<&Cuda> {
        let rows = self.cuda.iter().filter(|row| row.cuda <= *cuda && row.cuda.major() == cuda.major());
        rows.max_by(|a, b| a.cuda.cmp(&b.cuda))
    }

    /// The builds of this version; `None`: not known.
    pub fn build_of(&self, torch: &Version) -> Option<&Build> {
        let same = |build: &&Build| (build.torch.major(), build.torch.minor()) == (torch.major(), torch.minor());
        self.builds.iter().find(same).filter(|_| torch.is_release())
    }

    /// The index of a build that fits a driver best, which reports `cuda`: the newest that needs no minor version
    /// compatibility, else that which needs least of it. `None`: the driver serves none.
    pub fn index_for<'a>(&self, build: &'a Build, driver: &Version, cuda: Option<&Version>) -> Option<&'a Index> {
        let serves = |index: &&Index| self.driver_for(&index.cuda).is_some_and(|row| row.driver <= *driver);
        let served = || build.indexes.iter().filter(serves);
        let within = cuda.and_then(|cuda| served().filter(|i| i.cuda <= *cuda).max_by(|a, b| a.cuda.cmp(&b.cuda)));
        let major = served().map(|index| index.cuda.major()).max();
        within.or_else(|| served().filter(|index| Some(index.cuda.major()) == major).min_by(|a, b| a.cuda.cmp(&b.cuda)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_data_file_is_read_and_every_row_that_judges_has_a_source() {
        let table = Table::built_in().unwrap();
        let sources = table
            .cuda
            .iter()
            .map(|row| &row.source)
            .chain([&table.minor_versions.source, &table.index_url])
            .chain(table.builds.iter().map(|row| &row.source))
            .chain(table.wheels.iter().map(|row| &row.source))
            .chain(table.apis.iter().map(|row| &row.source))
            .chain(table.options.iter().map(|row| &row.source))
            .chain(table.faults.iter().filter_map(|row| row.source.as_ref()));
        for source in sources {
            assert!(source.starts_with("https://"), "{source}");
        }
        let ids: std::collections::BTreeSet<_> = table.faults.iter().map(|fault| &fault.id).collect();
        assert_eq!(ids.len(), table.faults.len());
        for fault in &table.faults {
            assert!(fault.before.as_ref().is_none_or(|before| fault.from < *before), "{}", fault.id);
            let option = |name: &str| table.options.iter().any(|o| o.key == name);
            if let Some(needs) = &fault.needs {
                assert!(option(&needs.option) && needs.together_with.iter().all(|o| option(o)), "{}", fault.id);
            }
        }
    }

    #[test]
    fn a_cuda_finds_its_driver() {
        let table = Table::built_in().unwrap();
        let v = |text: &str| Version::parse(text).unwrap();
        let driver = |cuda: &str| table.driver_for(&v(cuda)).map(|row| row.driver.to_string());
        for (cuda, least) in [
            ("13.0", "580"),
            ("13.2", "580"),
            ("12.0", "525"),
            ("12.8", "525"),
            ("11.8", "450.80"),
            ("10.2", "440.33"),
            ("9.0", "384.81"),
        ] {
            assert_eq!(driver(cuda).as_deref(), Some(least), "{cuda}");
        }
        assert_eq!(driver("8.0"), None);
        assert_eq!(driver("14.0"), None, "what a major version needs is not known before it is there");
    }

    #[test]
    fn a_build_is_found_for_what_a_driver_serves() {
        let table = Table::built_in().unwrap();
        let v = |text: &str| Version::parse(text).unwrap();
        for (torch, driver, cuda, index) in [
            ("2.11.0+cpu", "580.65", Some("13.0"), Some("cu130")),
            ("2.11.0", "575.51", Some("12.9"), Some("cu128")),
            ("2.11.0", "525.60", Some("12.0"), Some("cu126")),
            ("2.11.0", "535.54", None, Some("cu126")),
            ("2.12.1", "580.65", Some("13.0"), Some("cu130")),
            ("2.12.1", "595.10", Some("13.2"), Some("cu132")),
            ("2.5.1", "535.54", Some("12.2"), Some("cu121")),
            ("2.5.1", "525.60", Some("12.0"), Some("cu118")),
            ("2.5.1", "515.65", Some("11.7"), Some("cu118")),
            ("2.0.1", "470.10", Some("11.4"), Some("cu117")),
            ("2.11.0", "515.65", Some("11.7"), None),
        ] {
            let build = table.build_of(&v(torch)).unwrap();
            let found = table.index_for(build, &v(driver), cuda.map(v).as_ref());
            assert_eq!(found.map(|index| index.name.as_str()), index, "{torch} {driver} {cuda:?}");
        }
        for unknown in ["1.13.1", "2.99.0", "2.9.0a0+git1", "2.12.0.dev20260101"] {
            assert!(table.build_of(&v(unknown)).is_none(), "{unknown}");
        }
        assert!(table.builds.windows(2).all(|pair| pair[0].torch > pair[1].torch), "newest first");
    }

    #[test]
    fn the_rows_people_quote_wrongly_are_right() {
        let table = Table::built_in().unwrap();
        let since = |name: &str| table.apis.iter().find(|api| api.name == name).unwrap().since.to_string();
        assert_eq!(since("torch.cuda.empty_cache"), "0.4.0", "not 1.5");
        let wheel = table.wheels.iter().find(|wheel| wheel.torch.to_string() == "1.8.1").unwrap();
        assert_eq!(wheel.cuda.to_string(), "10.2");
        let leaks = table.faults.iter().find(|fault| fault.id == "early-leaks").unwrap();
        assert_eq!(leaks.source, None);
    }
}
