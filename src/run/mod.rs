//! The world of a run: the command, its signals, looks while it runs, and the wait until it is time to judge.
//!
//! Everything that happens arrives on one channel ([`event`]) and is waited for in one loop ([`watch`]). Around it:
//! [`session`] (what every phase needs), `before` (the before-look), [`child`] and [`signal_child`] (the command),
//! `signals` (whom they are for), `reap` and `family` (is anything of the run alive), `sampler` and `tree` (looks at
//! devices and descendants), [`chronicle`] (who is told of them), `settle` (when to judge; pure), `after` (the after-look), `outcome` and `output` (what is handed to
//! the judgement), `cleanup` (ends what is left), `worker` (reads `/proc` aside).

mod after;
mod before;
mod child;
mod chronicle;
mod cleanup;
mod clock;
mod event;
mod exec;
mod family;
mod inbox;
mod oom;
mod outcome;
mod output;
mod reap;
mod sampler;
mod session;
mod settle;
mod signal_child;
mod signals;
mod tree;
mod waiting_line;
mod watch;
mod worker;

pub use before::Before;
pub use child::NotStarted;
pub use chronicle::Chronicle;
pub use event::{Event, Looker, channel};
pub use outcome::{Options, Outcome};
pub use session::{Session, Stop};
pub use signals::was_ignored;
