//! `gen`: prints ready files, or writes them into a directory.

use super::{stdout, to_paste, typed};
use crate::{
    cli::{GenArgs, Global},
    error::{self, hinted},
    exit::{self, Ending},
    r#gen::{self, Wanted, trust},
    report::{Style, pending::Pending},
    text,
};
use anyhow::Context;
use std::{
    io::{self, Write as _},
    path::Path,
};

/// Prints or writes.
///
/// # Errors
/// If a file cannot be written.
pub(super) fn run(global: &Global, args: &GenArgs) -> anyhow::Result<Ending> {
    let recipe = r#gen::recipe(&args.name).ok_or_else(|| anyhow::anyhow!("there is no `{}` to generate", args.name))?;
    let binary = std::env::current_exe().context("cannot find the place of this program")?;
    if global.visible && typed("visible") {
        return Err(hinted(
            "what is generated runs elsewhere, where CUDA_VISIBLE_DEVICES is not as it is here",
            "name the GPUs instead, by number or UUID: -i GPU",
        ));
    }
    if args.output.as_deref() == Some(Path::new("-")) {
        return Err(hinted(
            "cannot write into `-`: standard output is where it goes without -o",
            "leave out -o to print, or name a directory; for one of that name write -o ./-",
        ));
    }
    if !recipe.for_root && (args.act || args.idle.is_some()) {
        return Err(hinted(
            format!("--act and --idle say what a timer may end by itself, and {} is none", recipe.name),
            "leave them out: a job's own hook ends what is left of that job",
        ));
    }
    let objection = if recipe.for_root {
        trust::objection(&binary).context("cannot see who may write this program")?
    } else {
        None
    };
    if let Some(why) = objection {
        let error =
            hinted(format!("root must not run {} every few minutes: {why}", binary.display()), elsewhere(&binary));
        // To read them does no harm. Where root's services are is no place for them.
        if args.output.is_some() {
            return Err(error);
        }
        // Where nobody reads the warning, the files are still what was asked for.
        let _ = writeln!(io::stderr(), "{}", error::warning(&error, Style::stderr().width));
    }
    let wanted = Wanted { binary: &binary, gpus: &global.gpu, act: args.act, idle: args.idle };
    let files = (recipe.files)(&wanted);
    match &args.output {
        Some(directory) => {
            // None is written if one of them cannot be.
            let mut pending = Vec::with_capacity(files.len());
            for file in &files {
                let path = directory.join(&file.name);
                pending.push((Pending::open(&path)?, path, file));
            }
            for (place, path, file) in pending {
                place.write(|out| out.write_all(file.text.as_bytes()))?;
                stdout::print(|out| writeln!(out, "{}", path.display()))?;
            }
        }
        None => {
            stdout::print(|out| {
                for line in (recipe.use_it)(&wanted).lines() {
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

/// Where to put the program so that root may run it, and the same command from there.
fn elsewhere(binary: &Path) -> String {
    const PLACE: &str = "/usr/local/bin/gpuresid";
    let word = binary.to_str().and_then(text::shell_word).unwrap_or_else(|| "gpuresid".into());
    let first = if binary == Path::new(PLACE) {
        format!("sudo chown root:root {word} && sudo chmod 755 {word}")
    } else {
        format!("sudo install -m 755 {word} {PLACE}")
    };
    let typed = std::env::args_os().skip(1).map(|word| word.into_string().ok());
    let again: Option<Vec<String>> = std::iter::once(Some(PLACE.to_owned())).chain(typed).collect();
    let again = again.and_then(|words| to_paste(&words)).unwrap_or_else(|| PLACE.into());
    // Indented lines are not broken, so that they can be pasted.
    format!("put it where only root can write, and use that one:\n  {first}\n  {again}")
}
