//! `help`: what there is, the help of a command, or a chapter of the guide.

use super::stdout;
use crate::{
    cli::{self, HelpArgs},
    error::hinted,
    exit::{self, Ending},
    guide::{self, CHAPTERS},
    report::Style,
};

/// Prints it.
///
/// # Errors
/// If there is nothing of this name, or it cannot be written.
pub(super) fn run(args: &HelpArgs) -> anyhow::Result<Ending> {
    let style = Style::stdout();
    let styled = |mut command: clap::Command| {
        let help = command.render_help();
        if style.color { help.ansi().to_string() } else { help.to_string() }
    };
    let tool = cli::tool();
    let text = match args.topic.as_deref() {
        None => styled(cli::overview()),
        Some(name) => match (guide::chapter(name), tool.find_subcommand(name)) {
            (Some(chapter), _) => chapter.page(style),
            (None, Some(command)) => styled(command.clone()),
            (None, None) => return Err(unknown(name, &tool)),
        },
    };
    stdout::print(|out| out.write_all(text.as_bytes()))?;
    Ok(Ending::Code(exit::CLEAN))
}

/// What there is instead.
fn unknown(name: &str, tool: &clap::Command) -> anyhow::Error {
    let mut hints = Vec::new();
    let speak_of_it: Vec<_> =
        guide::about(name).iter().map(|chapter| format!("gpuresid help {}", chapter.name)).collect();
    if !speak_of_it.is_empty() {
        hints.push(format!("the word is in: {}", speak_of_it.join(", ")));
    }
    hints.push(format!("topics: {}", CHAPTERS.map(|chapter| chapter.name).join(", ")));
    let commands: Vec<_> = tool.get_subcommands().map(clap::Command::get_name).collect();
    hints.push(format!("commands: {}", commands.join(", ")));
    hinted(format!("there is no command and no topic `{name}`"), hints.join("\n"))
}
