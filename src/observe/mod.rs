//! Reading the world: NVML through [`driver`], processes through [`proc`]. Nothing here judges.

pub mod driver;
pub mod marker;
pub mod proc;
pub mod select;
pub mod session;
pub mod shm;
mod snapshot;

pub use snapshot::{SnapshotParts, assemble};
