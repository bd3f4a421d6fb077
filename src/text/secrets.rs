//! Hides values that look like secrets in command lines. Reports are pasted into tickets and kept by CI, so it errs on
//! the side of hiding; the name of an option always stays, because it helps to recognise the program.

const HIDDEN: &str = "***";

/// Names whose value is secret, as the last words of an option's or a variable's name.
const SECRET_NAMES: &[&[&str]] = &[
    &["password"],
    &["passwd"],
    &["passphrase"],
    &["pwd"],
    &["secret"],
    &["token"],
    &["apikey"],
    &["credential"],
    &["credentials"],
    &["api", "key"],
    &["access", "key"],
    &["secret", "key"],
    &["private", "key"],
    &["auth", "key"],
    &["account", "key"],
    &["key", "secret"],
    &["access", "key", "id"],
    &["authorization"],
];

/// Tokens of language models, which are no secrets.
const INNOCENT_TOKENS: &[&str] =
    &["pad", "eos", "bos", "unk", "sep", "cls", "mask", "stop", "start", "end", "image", "special", "per", "decoder"];

/// Prefixes by which services mark their keys.
const KEY_PREFIXES: &[&str] = &[
    "hf_",
    "sk-",
    "sk_live_",
    "sk_test_",
    "ghp_",
    "gho_",
    "ghu_",
    "ghs_",
    "github_pat_",
    "glpat-",
    "xoxb-",
    "xoxp-",
    "nvapi-",
    "AKIA",
    "ASIA",
    "AIza",
    "eyJ",
];

/// `argv` with the values of secrets replaced by `***`.
pub(super) fn hide(argv: &[String]) -> Vec<String> {
    let mut next_is_secret = false;
    argv.iter()
        .map(|arg| {
            if arg.contains(char::is_whitespace) && !next_is_secret {
                return hide_words(arg);
            }
            hide_word(arg, &mut next_is_secret)
        })
        .collect()
}

/// An argument that is a line of its own: `bash -c "HF_TOKEN=… python train.py"`.
fn hide_words(line: &str) -> String {
    let mut next_is_secret = false;
    let mut out = String::with_capacity(line.len());
    for piece in line.split_inclusive(char::is_whitespace) {
        let word = piece.trim_end_matches(char::is_whitespace);
        if word.is_empty() {
            out.push_str(piece);
            continue;
        }
        out.push_str(&hide_word(word, &mut next_is_secret));
        out.push_str(piece.get(word.len()..).unwrap_or_default());
    }
    out
}

/// One word; `next_is_secret` goes from `--token` to the word after it.
fn hide_word(word: &str, next_is_secret: &mut bool) -> String {
    let is_option = word.starts_with('-');
    if std::mem::take(next_is_secret) && !is_option {
        // `Authorization: Bearer xyz`: the scheme is no secret, what follows is.
        if ["bearer", "basic"].contains(&word.to_ascii_lowercase().as_str()) {
            *next_is_secret = true;
            return word.into();
        }
        return HIDDEN.into();
    }
    if let Some((name, value)) = word.split_once('=') {
        if is_secret_name(name) && !value.is_empty() {
            return format!("{name}={HIDDEN}");
        }
        return format!("{name}={}", hide_value(value));
    }
    if is_option && is_secret_name(word) {
        *next_is_secret = true;
        return word.into();
    }
    let header = word.trim_start_matches(['"', '\'']);
    if header.strip_suffix(':').is_some_and(is_secret_name) || header.eq_ignore_ascii_case("bearer") {
        *next_is_secret = true;
        return word.into();
    }
    hide_value(word)
}

/// A value that shows by its form that it is a key, or an address with a password in it.
fn hide_value(value: &str) -> String {
    let bare = value.trim_matches(['"', '\'', '(', ')', ',', ';']);
    let is_key = KEY_PREFIXES
        .iter()
        .filter_map(|prefix| bare.strip_prefix(prefix))
        .any(|rest| rest.len() >= 8 && rest.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.')));
    // A file such as `hf_finetune_llama.py` starts like a key and ends like a file.
    let is_file =
        bare.rsplit_once('.').is_some_and(|(_, end)| (1..=6).contains(&end.len()) && !bare.starts_with("eyJ"));
    if is_key && !is_file {
        return HIDDEN.into();
    }
    if let Some((scheme, rest)) = value.split_once("://") {
        let host = rest.split(['/', '?', '#']).next().unwrap_or(rest);
        if let Some((login, _)) = host.rsplit_once('@') {
            let user = login.split_once(':').map(|(user, _)| format!("{user}:"));
            let tail = rest.get(login.len()..).unwrap_or_default();
            return format!("{scheme}://{}{HIDDEN}{tail}", user.unwrap_or_default());
        }
    }
    value.into()
}

/// Whether this name of an option or variable says that its value is secret: by its last words, so that `--token-limit`
/// and `--password-file` stay.
fn is_secret_name(name: &str) -> bool {
    let words = words_of(name);
    let is_innocent = words.last().is_some_and(|last| last == "token")
        && words.iter().rev().nth(1).is_some_and(|before| INNOCENT_TOKENS.contains(&before.as_str()));
    !is_innocent
        && SECRET_NAMES.iter().any(|secret| {
            words.len() >= secret.len() && words.iter().rev().zip(secret.iter().rev()).all(|(word, part)| word == part)
        })
}

/// The words of `--hf-token`, `HF_TOKEN`, `wandb.apiKey`, in lower case.
fn words_of(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut after_lower = false;
    for c in name.chars() {
        if !c.is_alphanumeric() {
            words.push(String::new());
        } else {
            if c.is_uppercase() && after_lower {
                words.push(String::new());
            }
            if let Some(word) = words.last_mut() {
                word.extend(c.to_lowercase());
            }
        }
        after_lower = c.is_lowercase();
    }
    words.retain(|word| !word.is_empty());
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hidden(line: &[&str]) -> String {
        hide(&line.iter().map(|a| (*a).to_string()).collect::<Vec<_>>()).join("|")
    }

    #[test]
    fn values_of_secret_options_and_variables_are_hidden() {
        for (args, shown) in [
            (&["--token", "abc"][..], "--token|***"),
            (&["--hf-token=abc"], "--hf-token=***"),
            (&["--password=a=b"], "--password=***"),
            (&["--api-key", "k", "--epochs", "3"], "--api-key|***|--epochs|3"),
            (&["--apiKey", "k"], "--apiKey|***"),
            (&["env", "AWS_SECRET_ACCESS_KEY=abc", "HF_TOKEN=x"], "env|AWS_SECRET_ACCESS_KEY=***|HF_TOKEN=***"),
            (&["+logger.wandb.api_key=abc"], "+logger.wandb.api_key=***"),
            (&["--token", "two words"], "--token|***"),
            (
                &["sh", "-c", "HF_TOKEN=abc  python t.py --password p q"],
                "sh|-c|HF_TOKEN=***  python t.py --password *** q",
            ),
            (&["curl", "-H", "Authorization: Bearer abc"], "curl|-H|Authorization: Bearer ***"),
        ] {
            assert_eq!(hidden(args), shown);
        }
    }

    #[test]
    fn keys_are_known_by_their_form() {
        for (args, shown) in [
            (&["hf_abcdefghijKLMNOP"][..], "***"),
            (&["--login", "sk-proj-abcdefgh1234"], "--login|***"),
            (&["--header=ghp_abcdefgh1234"], "--header=***"),
            (&["AKIAIOSFODNN7EXAMPLE"], "***"),
            (&["https://me:secret@example.org/x"], "https://me:***@example.org/x"),
            (&["git+https://ghtoken@example.org"], "git+https://***@example.org"),
        ] {
            assert_eq!(hidden(args), shown);
        }
    }

    #[test]
    fn training_options_stay() {
        for arg in [
            "--max-tokens=512",
            "--tokenizer=gpt2",
            "--token-limit=5",
            "--pad-token=<pad>",
            "--bos_token_id=2",
            "--password-file=/run/pw",
            "--keyboard=us",
            "hf_finetune_llama.py",
            "s3://bucket/path@1",
            "sk-learn",
            "--lr=3e-4",
        ] {
            assert_eq!(hidden(&[arg]), arg);
        }
        assert_eq!(hidden(&["--eos-token", "</s>", "--token", "--verbose"]), "--eos-token|</s>|--token|--verbose");
    }
}
