//! The fake library's file, and variants of it that lack symbols.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// The library that Cargo built as a dependency of the tests: beside the test's own executable, never stale.
pub(super) fn built() -> PathBuf {
    let library = std::env::current_exe().unwrap().with_file_name("libfake_nvml.so");
    assert!(library.exists(), "{} is missing: run the tests through cargo test", library.display());
    library
}

/// Copies a library without these symbols: their names in its string tables are overwritten, so that the dynamic
/// linker finds none of them.
pub(super) fn without(library: &Path, variant: &Path, symbols: &[&str]) {
    let mut bytes = fs::read(library).unwrap();
    for symbol in symbols {
        let name = [b"\0", symbol.as_bytes(), b"\0"].concat();
        let places: Vec<usize> =
            bytes.windows(name.len()).enumerate().filter(|(_, w)| *w == name).map(|(place, _)| place).collect();
        assert!(!places.is_empty(), "the library has no symbol {symbol}");
        for place in places {
            bytes[place + 1] = b'-';
        }
    }
    fs::write(variant, bytes).unwrap();
}
