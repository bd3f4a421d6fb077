//! What the README says about the tool is so: its exit codes are the table of the code, and its commands can be typed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test says what broke by breaking")]

use clap::Parser;
use gpuresid::{cli::Cli, exit};

const README: &str = include_str!("../README.md");

#[test]
fn the_exit_codes_are_those_of_the_code() {
    let all = exit::table();
    let (_, table) = all.split_once('\n').unwrap();
    assert!(README.contains(table), "README.md lacks this table:\n{table}");
}

/// The arguments of every `gpuresid …` in the README's code, up to what belongs to the shell.
fn commands() -> Vec<Vec<String>> {
    let mut found = Vec::new();
    // Odd parts are inside of a fence or of back ticks.
    let fences = README.split("```").enumerate().filter(|(n, _)| n % 2 == 1).map(|(_, block)| block);
    let text: String = README.split("```").step_by(2).collect();
    let ticks = text.split('`').enumerate().filter(|(n, _)| n % 2 == 1).map(|(_, code)| code);
    let shell = fences.filter(|block| block.starts_with("sh\n") || block.starts_with("yaml\n"));
    for code in shell.flat_map(str::lines).chain(ticks) {
        for (at, name) in code.match_indices("gpuresid") {
            let starts = code[..at].chars().next_back().is_none_or(|c| matches!(c, ' ' | '(' | '['));
            let rest = &code[at + name.len()..];
            if !starts || !(rest.is_empty() || rest.starts_with(' ')) || code.starts_with("cargo ") {
                continue;
            }
            let end = rest.find(['#', '|', '<', ')', ']', '>']).unwrap_or(rest.len());
            let words = rest[..end].split_whitespace().map(|word| word.trim_matches('"').to_owned());
            found.push(std::iter::once("gpuresid".to_owned()).chain(words).collect());
        }
    }
    found
}

#[test]
fn its_commands_can_be_typed() {
    let commands = commands();
    assert!(commands.len() > 12, "{commands:?}");
    for command in commands {
        let parsed = Cli::try_parse_from(&command).and_then(Cli::command);
        assert!(parsed.is_ok(), "{command:?}: {}", parsed.unwrap_err());
    }
}

#[test]
fn its_options_exist() {
    let tool = <Cli as clap::CommandFactory>::command();
    let mut known: Vec<String> = Vec::new();
    for command in tool.get_subcommands().chain([&tool]) {
        known.extend(command.get_arguments().filter_map(|a| a.get_long()).map(|long| format!("--{long}")));
    }
    let text: String = README.split("```").step_by(2).collect();
    for code in text.split('`').skip(1).step_by(2).filter(|code| code.starts_with("--")) {
        let option = code.split([' ', '=']).next().unwrap();
        assert!(known.iter().any(|k| k == option), "the README speaks of {option}");
    }
}
