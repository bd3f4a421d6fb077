//! Output: each format takes a report and a writer.
