//! The report for people: the verdict first, then the devices, who holds what and why, what could not be seen, and last
//! what to do, because the last lines are what stands above the prompt.

mod check;
mod doctor;
mod files;
mod gate;
mod grid;
mod life;
mod parts;
mod place;
mod reclaim;
mod status;
#[cfg(test)]
mod tests;
mod torch;

pub use check::check;
pub use doctor::doctor;
pub use files::files;
pub use gate::broken_rules;
pub use reclaim::{Asked, cleanup, reclaim};
pub use status::status;
