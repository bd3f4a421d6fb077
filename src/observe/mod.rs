//! Reading the world: NVML through [`driver`], processes through [`proc`]. Nothing here judges.

pub mod driver;
pub mod proc;
mod snapshot;

pub use snapshot::{SnapshotParts, assemble};
