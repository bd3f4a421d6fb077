//! gpuresid: who still holds GPU memory after a program ended, why, and how to get it back.
//!
//! Values flow one way: [`observe`] reads the world into the words of [`model`], [`judge`] turns them into a
//! [`model::Report`] without any IO, [`report`] writes that for people and programs. [`run`] starts and watches a
//! command, [`act`] ends what holds memory, [`commands`] wires the parts together, one short file per subcommand;
//! [`demo`] has the stories that it plays, [`guide`] the chapters that `help` prints.
//!
//! This library exists for the binary `gpuresid` and its tests; it promises no stable interface.

pub mod act;
pub mod cli;
pub mod commands;
pub mod demo;
mod dispositions;
pub mod doctor;
pub mod error;
pub mod exit;
pub mod r#gen;
pub mod guide;
pub mod judge;
pub mod model;
pub mod observe;
pub mod report;
pub mod run;
pub mod text;
pub mod torch;
