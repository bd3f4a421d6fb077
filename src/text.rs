//! Foreign text made safe.

/// Shim until the text module arrives.
pub fn clean(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).collect()
}

/// Shim until the text module arrives.
pub fn display_command(argv: &[String], comm: &str) -> String {
    if argv.is_empty() { format!("[{}]", clean(comm)) } else { clean(&argv.join(" ")) }
}

/// Shim until the text module arrives.
pub fn display_argv(argv: &[String]) -> Vec<String> {
    argv.iter().map(|a| clean(a)).collect()
}
