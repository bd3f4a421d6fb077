//! Acting on processes: ending what holds GPU memory, and proving that the memory came back.
//!
//! [`signal`] is the one place that sends a signal, [`guard`] knows who never gets one,
//! [`refusal`] why. `reclaim` goes through
//! [`targets`] (whom the user means, from a report that nobody has to believe, by number, by a sign or by job), [`terms`]
//! (who decides that, and how far it reaches), [`plan`] (who, in which order, with which signal, for how much; nothing
//! happens yet), [`carry_out`] and [`verify`]. [`life`] what they do now. [`lock`] keeps two of them apart; [`again`] knows who would start a process
//! again, [`job`] and [`ci`] who is of a job of Slurm or of a CI runner, [`unattended`] whom a timer may end by the
//! [`records`] of checks, or by the site's policy for what is [`idle`].

pub mod again;
pub mod carry_out;
pub mod ci;
pub mod guard;
pub mod idle;
pub mod job;
pub mod life;
pub mod lock;
pub mod plan;
pub mod records;
pub mod refusal;
pub mod report_file;
pub mod signal;
pub mod targets;
pub mod terms;
pub mod unattended;
pub mod verify;
