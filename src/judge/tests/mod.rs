//! Tests of the judgement: on looks recorded from real GPUs with every number computed by hand, and on random worlds
//! against an oracle.

mod build;
mod properties;
mod recordings;
mod worlds;
