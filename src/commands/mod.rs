//! One short file per subcommand: wiring and loops only.
pub mod check;
