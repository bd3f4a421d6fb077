//! Parse, run, exit code; and the one place that prints an error.

use gpuresid::{
    cli::{Cli, usage},
    commands, demo, error,
    exit::{self, Ending},
    observe, report, run,
};
use std::{
    io::{self, Write},
    sync::{Arc, atomic::AtomicBool},
};

fn main() {
    outlive_the_limit_of_files();
    // The driver's helper is this same binary; its start is part of every command's time.
    if let Some(code) = observe::driver::inner_command(std::env::args_os()) {
        std::process::exit(code);
    }
    if let Some(code) = demo::inner_command(std::env::args_os()) {
        std::process::exit(code);
    }
    if let Some(ending) = commands::demo::inner_command(std::env::args_os()) {
        ending.end();
    }
    let ended = match Cli::read(std::env::args_os().collect()) {
        Ok(cli) => commands::run(cli),
        // Help and version were asked for. That nobody reads them is no error.
        Err(help) if !help.use_stderr() => {
            let _ = help.print();
            Ok(Ending::Code(exit::CLEAN))
        }
        Err(wrong) => Err(usage::error(&wrong)),
    };
    let ending = ended.unwrap_or_else(|error| {
        // Where standard error is closed, the exit code still says it.
        let _ = write!(io::stderr(), "{}", error::display_in(&error, report::Style::stderr().width));
        Ending::Code(exit::CANNOT)
    });
    ending.end();
}

/// A text that is larger than files may be here is a write error like any other; the kernel also sends a signal that
/// would end us. It is caught and not ignored, because the command would inherit that, and left as it is where we have
/// inherited that ourselves.
fn outlive_the_limit_of_files() {
    let signal = rustix::process::Signal::XFSZ.as_raw();
    if !run::was_ignored(signal) {
        let _ = signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)));
    }
}
