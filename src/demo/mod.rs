//! The demo: a simulated GPU, and real processes that use it in ways that leave memory behind. This part knows the
//! stories and the programs; that the real `check` watches them is the business of [`crate::commands`].
//!
//! The programs are this same binary under a hidden inner command ([`PROGRAM`]). Nobody signals them: each looks now
//! and then whether the demo still goes on (see [`Place`]), and ends by itself when it does not.

mod case;
mod place;
mod program;

pub use case::Case;
pub use place::{Paths, Place};
pub use program::{PROGRAM, inner_command};
