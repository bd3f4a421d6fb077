//! `doctor`: whether this machine can use its GPUs, and whether what it says about their memory can be trusted.
//!
//! [`observe`] reads the world into [`Facts`] and judges nothing; [`judge`] turns facts into lines without any IO, so
//! that each line has its test. What is known about PyTorch's versions is data: [`table`].

pub mod facts;
pub mod judge;
pub mod observe;
pub mod table;
pub mod version;

pub use facts::Facts;
