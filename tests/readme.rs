//! What README and guide say about the tool is so: the exit codes are the table of the code, commands can be typed,
//! links lead somewhere, names are in the reports. Both are short enough to be read.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test says what broke by breaking")]

mod support;

use clap::Parser as _;
use gpuresid::{
    cli::{Cli, Command},
    exit,
    guide::{CHAPTERS, chapter},
    report::Style,
    text,
};
use serde_json::Value;
use std::{collections::BTreeMap, path::Path};
use support::Rig;

const README: &str = include_str!("../README.md");

fn tool() -> clap::Command {
    <Cli as clap::CommandFactory>::command()
}

/// The README and all chapters: the directory that their links start from, their name, their text.
fn documents() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    std::iter::once(("", "README", README)).chain(CHAPTERS.iter().map(|c| ("src/guide", c.name, c.text)))
}

/// The lines of a document outside of code.
fn prose(document: &str) -> impl Iterator<Item = &str> {
    document.split("```").step_by(2).flat_map(str::lines)
}

/// What stands in back ticks outside of blocks.
fn ticks(document: &str) -> Vec<String> {
    let text: String = document.split("```").step_by(2).collect();
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// The arguments of every `gpuresid …` in the code of a document, up to what belongs to the shell.
fn commands(document: &'static str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let fences = document.split("```").skip(1).step_by(2);
    let shell = fences.filter(|block| ["sh\n", "yaml\n", "console\n"].iter().any(|kind| block.starts_with(kind)));
    for code in shell.flat_map(str::lines).map(str::to_owned).chain(ticks(document)) {
        for (at, name) in code.match_indices("gpuresid") {
            let starts = code[..at].chars().next_back().is_none_or(|c| matches!(c, ' ' | '(' | '['));
            let rest = &code[at + name.len()..];
            if !starts || !(rest.is_empty() || rest.starts_with(' ')) || code.starts_with("cargo ") {
                continue;
            }
            let end = rest.find(['#', '|', '<', ')', ']', '>', '…', ';']).unwrap_or(rest.len());
            // Odd parts are inside of quotes.
            let words = rest[..end].split('"').enumerate().flat_map(|(number, part)| match number % 2 {
                0 => part.split_whitespace().map(str::to_owned).collect(),
                _ => vec![part.to_owned()],
            });
            found.push(std::iter::once("gpuresid".to_owned()).chain(words).collect());
        }
    }
    found
}

// ---- The tool -------------------------------------------------------------------------------------------------------

#[test]
fn the_exit_codes_are_those_of_the_code() {
    let all = exit::table();
    let (_, table) = all.split_once('\n').unwrap();
    assert!(README.contains(table), "README.md lacks this table:\n{table}");
}

#[test]
fn commands_can_be_typed() {
    for (_, name, document) in documents() {
        let commands = commands(document);
        assert!(commands.len() > 12 || name != "README", "{commands:?}");
        for command in commands {
            // `gpuresid reclaim` alone says what there is to choose.
            let named = command.len() == 2 && tool().find_subcommand(&command[1]).is_some();
            match Cli::try_parse_from(&command).and_then(Cli::command) {
                Ok((_, Command::Help(help))) => {
                    let topic = help.topic.unwrap_or_else(|| "TOPIC".into());
                    let known = chapter(&topic).is_some() || tool().find_subcommand(&topic).is_some();
                    assert!(known || topic == "TOPIC", "{name}: there is no topic {topic}");
                }
                parsed => assert!(named || parsed.is_ok(), "{name}: {command:?}: {}", parsed.unwrap_err()),
            }
        }
    }
}

#[test]
fn options_exist() {
    let tool = tool();
    let mut known: Vec<String> = Vec::new();
    for command in tool.get_subcommands().chain([&tool]) {
        known.extend(command.get_arguments().filter_map(|a| a.get_long()).map(|long| format!("--{long}")));
    }
    // An alias.
    known.push("--all".into());
    for (_, name, document) in documents() {
        for code in ticks(document).iter().filter(|code| code.starts_with("--")) {
            let option = code.split([' ', '=']).next().unwrap();
            assert!(known.iter().any(|k| k == option), "{name} speaks of {option}");
        }
    }
}

// ---- The texts ------------------------------------------------------------------------------------------------------

#[test]
fn the_readme_is_read_in_minutes() {
    assert!(README.lines().count() <= 200, "{} lines", README.lines().count());
    assert!(README.len() <= 13_000, "{} bytes", README.len());
    let long = README.lines().find(|line| !line.starts_with('|') && text::width(line) > 120);
    assert_eq!(long, None);
}

#[test]
fn the_guide_fits_a_terminal() {
    for chapter in &CHAPTERS {
        assert!(chapter.text.starts_with("# ") && chapter.text.ends_with('\n'), "{}", chapter.name);
        assert_eq!(chapter.text.matches("```").count() % 2, 0, "{}: a block is open", chapter.name);
        for line in chapter.text.lines().filter(|line| !line.starts_with('|')) {
            assert!(text::width(line) <= 100, "{}: {line}", chapter.name);
            assert_eq!(line.trim_end(), line, "{}: spaces at the end", chapter.name);
        }
    }
}

#[test]
fn nothing_is_said_twice() {
    let mut seen = BTreeMap::new();
    for (_, name, document) in documents() {
        for line in prose(document).map(str::trim).filter(|line| line.len() > 60) {
            let other = seen.insert(line, name);
            assert!(other.is_none(), "{name} and {} say: {line}", other.unwrap());
        }
    }
}

#[test]
fn links_lead_somewhere() {
    for (directory, name, document) in documents() {
        let text = prose(document).collect::<Vec<_>>().join("\n");
        let targets: Vec<&str> = text.split("](").skip(1).map(|rest| rest.split(')').next().unwrap()).collect();
        assert!(name != "README" || targets.len() > 10, "{targets:?}");
        for target in targets {
            let there = match target.strip_prefix('#') {
                Some(anchor) => prose(document)
                    .filter_map(|line| line.strip_prefix("## "))
                    .any(|heading| heading.to_lowercase().replace(' ', "-") == anchor),
                None => Path::new(env!("CARGO_MANIFEST_DIR")).join(directory).join(target).is_file(),
            };
            assert!(there, "{name}: {target}");
        }
    }
}

#[test]
fn the_readme_leads_to_every_chapter() {
    for chapter in &CHAPTERS {
        assert!(README.contains(&format!("](src/guide/{}.md)", chapter.name)), "{}", chapter.name);
    }
}

// ---- `gpuresid help` ------------------------------------------------------------------------------------------------

#[test]
fn every_topic_is_listed_and_printed() {
    let rig = Rig::new();
    let list = rig.run("help").expect_code(0).stdout.clone();
    assert!(list.lines().count() <= 40 && list.contains("\n  check     Run a command"), "one screen: {list}");
    for chapter in &CHAPTERS {
        assert!(list.contains(&format!("\n  {:10}  {}\n", chapter.name, chapter.about)), "{list}");
        let printed = rig.run(&format!("help {}", chapter.name)).expect_code(0).stdout.clone();
        assert_eq!(printed, chapter.page(Style::default()));
        assert!(printed.starts_with("# ") && !printed.contains("![") && !printed.contains('\u{1b}'), "{printed}");
        assert!(tool().find_subcommand(chapter.name).is_none(), "{} is a command too", chapter.name);
    }
}

#[test]
fn the_help_of_a_command_leads_to_its_chapters() {
    let rig = Rig::new();
    let help = rig.run("help reclaim").expect_code(0).stdout.clone();
    assert_eq!(help, rig.run("reclaim --help").stdout);
    assert!(help.ends_with("\nRead more (gpuresid help TOPIC): slurm, freeing\n"), "{help}");
    let tool = tool();
    for command in CHAPTERS.iter().flat_map(|chapter| chapter.commands) {
        assert!(tool.find_subcommand(command).is_some(), "{command}");
    }
}

#[test]
fn an_unknown_topic_is_an_error_that_says_what_there_is() {
    let rig = Rig::new();
    let end = rig.run("help nonsense");
    end.expect_code(exit::CANNOT);
    assert_eq!(end.stdout, "");
    let topics: Vec<_> = CHAPTERS.iter().map(|chapter| chapter.name).collect();
    assert_eq!(
        end.stderr,
        format!(
            "error: there is no command and no topic `nonsense`\n\n\
             hint: topics: {}\n\
             commands: status, check, snapshot, diff, doctor, demo, reclaim, wait, gen, help\n",
            topics.join(", ")
        )
    );
    // A word of the tool is looked up.
    for (word, chapters) in [("half_dead", "words"), ("Orphan", "words"), ("residue", "words"), ("crontab", "freeing")]
    {
        let end = rig.run(&format!("help {word}"));
        assert!(end.stderr.contains(&format!("\nhint: the word is in: gpuresid help {chapters}\n")), "{}", end.stderr);
    }
}

#[test]
fn every_cause_is_explained_by_the_name_that_is_shown() {
    let said = Rig::new().run("--fail-on nonsense").stderr;
    let (_, causes) = said.split_once("the causes are ").unwrap();
    let causes: Vec<&str> = causes.lines().next().unwrap().split(", ").collect();
    assert!(causes.len() > 15, "{causes:?}");
    for cause in causes {
        // `draining (on its way out)`, or a name that is shown as it is.
        let (name, shown) = cause.split_once(" (").map_or((cause, None), |(name, shown)| (name, Some(shown)));
        let text = chapter("words").unwrap().text.to_lowercase();
        match shown {
            Some(shown) => {
                let explained = format!("**{}** (`{name}`", shown.trim_end_matches(')'));
                assert!(text.contains(&explained), "{explained}");
            }
            None => assert!(text.contains(&format!("**{}**:", name.replace('_', " "))), "{name}"),
        }
    }
}

// ---- What is shown --------------------------------------------------------------------------------------------------

/// The words of a text; a number with no unit behind it, such as a PID, is `#`.
fn masked(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    let unit = |at: usize| words.get(at + 1).is_some_and(|next| next.starts_with(['M', 'G', 'K']) || *next == "B");
    let mask = |(at, word): (usize, &&str)| {
        let bare = word.trim_matches(|c: char| !c.is_ascii_digit());
        let number = bare.len() > 2 && bare.chars().all(|c| c.is_ascii_digit()) && !unit(at);
        if number { word.replace(bare, "#") } else { (*word).to_owned() }
    };
    words.iter().enumerate().map(mask).collect::<Vec<_>>().join(" ")
}

/// The block behind this line of a document is what was printed, but for what is left out.
fn expect_shown(document: &str, after: &str, printed: &str) {
    let (_, rest) = document.split_once(after).unwrap_or_else(|| panic!("{after} is not there"));
    let block = rest.split("```").next().unwrap();
    let stream = masked(printed);
    for line in block.lines().filter(|line| !line.is_empty()) {
        let line = match line.trim_start().starts_with(|c: char| c.is_ascii_digit()) && !line.contains(". ") {
            // A row: whose it is, since when, and its command differ from machine to machine.
            true => {
                let columns: Vec<_> = line.split("  ").map(str::trim).filter(|column| !column.is_empty()).collect();
                columns[3..columns.len() - 1].join(" ")
            }
            false => line.to_owned(),
        };
        assert!(stream.contains(&masked(&line)), "`{}` is not in\n{stream}", masked(&line));
    }
}

#[test]
fn the_first_screen_is_what_the_tool_prints() {
    let rig = Rig::new();
    let _trainer = rig.start("alloc 0 5220MiB fork-and-exit ready copy hold");
    rig.wait_for("copy");
    expect_shown(README, "$ gpuresid\n", &rig.run("").expect_code(0).stdout);
}

#[test]
fn the_chapters_show_what_the_tool_prints() {
    let text = |name| chapter(name).unwrap().text;
    let rig = Rig::new();
    rig.edit_machine(|machine| machine["devices"][0]["utilization"] = 0.into());
    let agent = rig.start("rename pt_elastic supervise 1 { alloc 0 20474MiB ready rank hold }");
    let pid = rig.wait_for("rank");
    agent.kill();
    let looked = rig.run("").expect_code(0).stdout.clone();
    expect_shown(text("full"), "shortened:\n\n```text\n", &looked);
    let plan = rig.run(&format!("reclaim --pid {pid}")).expect_code(0).stdout.clone();
    let user = &rig.run("--json").json()["holders"][0]["user"];
    let full = text("full")
        .replace("of root, orphan: python3 -u train.py", &format!("of {}, orphan:", user.as_str().unwrap()));
    let fake = format!("--nvml-lib {} --dev {} ", rig.library().display(), rig.dev().display());
    expect_shown(&full, "reclaim --pid 17447\n```\n\n```text\n", &plan.replace(&fake, ""));
    let demo = rig.run("demo forked-copy");
    expect_shown(text("runs"), "worker:\n\n```text\n", &format!("{}{}", demo.stdout, demo.stderr));
}

/// Whether this name, as `devices[].uuid`, leads to something in `value`. In an empty list nothing can be looked for.
fn has(value: &Value, name: &str) -> bool {
    let (first, rest) = name.split_once('.').map_or((name, None), |(first, rest)| (first, Some(rest)));
    let Some(part) = value.get(first.trim_end_matches("[]")) else { return false };
    match (first.ends_with("[]"), rest) {
        (true, Some(rest)) => part.as_array().unwrap().iter().all(|one| has(one, rest)),
        (false, Some(rest)) => has(part, rest),
        _ => true,
    }
}

#[test]
fn the_names_in_json_are_those_of_the_reports() {
    let rig = Rig::new();
    let line = rig.program("alloc 0 1GiB fork-and-exit ready copy hold");
    let options = format!("--settle 1s --report {}", rig.path("result.json").display());
    rig.launch(rig.check_of(&options, &line)).wait().expect_code(exit::RESIDUE);
    let report = rig.report("result.json");
    let status: Value = serde_json::from_str(&rig.run("--json").expect_code(0).stdout).unwrap();
    for list in ["holders", "ghosts", "advice", "devices"] {
        assert!(report[list].as_array().is_some_and(|list| !list.is_empty()), "{list} is empty: {report}");
    }
    let text = chapter("json").unwrap().text;
    let mut blocks = text.split("```text\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    for value in [&report, &status] {
        let block = blocks.next().unwrap();
        let names: Vec<_> = block
            .lines()
            .flat_map(|line| line.split("  ").next().unwrap().split(", "))
            .map(str::trim)
            .filter(|name| !name.is_empty())
            .collect();
        assert!(names.len() > 10, "{names:?}");
        for name in names {
            assert!(has(value, name), "{name} is not in {value}");
        }
    }
    assert_eq!(blocks.next(), None);
}
