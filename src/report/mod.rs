//! Output: each format takes a report and a writer. Nothing here reads NVML or `/proc`, and nothing here judges.

mod aside;
pub mod json;
pub mod load;
pub mod pending;
pub mod redact;
mod say;
mod stream;
pub mod style;
pub mod table;
pub mod targets;
mod walk;
pub mod words;

pub use style::Style;
pub use targets::{Format, ReportTarget, Targets, earlier_reports};
