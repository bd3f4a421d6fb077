//! Tests of the judgement: on looks recorded from real GPUs with every number computed by hand, and on random worlds
//! against an oracle.

mod advice;
pub(in crate::judge) mod build;
mod busy;
mod causes;
mod handover;
mod hidden;
mod mig;
mod properties;
mod recordings;
mod settled;
mod strangers;
mod unlisted;
mod words;
mod worlds;
