//! `gen`: prints ready files, or writes them into a directory.

use super::stdout;
use crate::{
    cli::GenArgs,
    error::hinted,
    exit::{self, Ending},
    r#gen,
    report::pending::Pending,
};
use anyhow::Context;
use std::path::Path;

/// Prints or writes.
///
/// # Errors
/// If a file cannot be written.
pub(super) fn run(args: &GenArgs) -> anyhow::Result<Ending> {
    let recipe = r#gen::recipe(&args.name).ok_or_else(|| anyhow::anyhow!("there is no `{}` to generate", args.name))?;
    let binary = std::env::current_exe().context("cannot find the place of this program")?;
    let files = (recipe.files)(&binary);
    match &args.output {
        Some(directory) if directory == Path::new("-") => {
            return Err(hinted(
                "cannot write into `-`: standard output is where it goes without -o",
                "leave out -o to print, or name a directory; for one of that name write -o ./-",
            ));
        }
        Some(directory) => {
            for file in &files {
                let path = directory.join(&file.name);
                Pending::open(&path)?.write(|out| out.write_all(file.text.as_bytes()))?;
                stdout::print(|out| writeln!(out, "{}", path.display()))?;
            }
        }
        None => {
            stdout::print(|out| {
                for line in recipe.use_it.lines() {
                    writeln!(out, "# {line}")?;
                }
                for file in &files {
                    write!(out, "\n# ---- {} ----\n{}", file.name, file.text)?;
                }
                Ok(())
            })?;
        }
    }
    Ok(Ending::Code(exit::CLEAN))
}
