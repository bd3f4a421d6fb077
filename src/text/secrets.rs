//! Hides values that look like secrets in command lines. Reports are pasted into tickets and kept by CI, so it errs on
//! the side of hiding; the name of an option always stays, because it helps to recognise the program.

mod address;
mod pairs;

const HIDDEN: &str = "***";

/// Names whose value is secret, as the last words of an option's or a variable's name.
const SECRET_NAMES: &[&[&str]] = &[
    &["pwd"],
    &["pw"],
    &["creds"],
    &["secret"],
    &["credential"],
    &["credentials"],
    &["key", "secret"],
    &["access", "key", "id"],
    &["authorization"],
];

/// Tokens of language models, which are no secrets.
const INNOCENT_TOKENS: &[&str] =
    &["pad", "eos", "bos", "unk", "sep", "cls", "mask", "stop", "start", "end", "image", "special", "per", "decoder"];

/// Columns, fields and places that are called a key.
const INNOCENT_KEYS: &[&str] = &[
    "sort",
    "partition",
    "primary",
    "foreign",
    "public",
    "cache",
    "group",
    "label",
    "text",
    "image",
    "audio",
    "video",
    "caption",
    "column",
    "dict",
    "state",
    "data",
    "dataset",
    "order",
    "index",
    "lookup",
    "row",
    "feature",
    "input",
    "output",
    "prompt",
    "target",
    "metric",
    "monitor",
    "batch",
    "obs",
    "host",
    "known",
    "is",
];

/// Passes over data.
const INNOCENT_PASSES: &[&str] = &[
    "single", "one", "two", "multi", "first", "second", "last", "num", "max", "n", "forward", "backward", "bwd", "fwd",
    "by", "no",
];

/// Ends of words that are written as one: `PGPASSWORD`.
const SECRET_ENDS: &[&str] = &["password", "passwd", "passphrase", "apikey", "secretkey", "accesskey", "authtoken"];

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
            if next_is_secret {
                return hide_word(arg, &mut next_is_secret);
            }
            let arg = pairs::hide(arg);
            if arg.contains(char::is_whitespace) {
                return hide_words(&arg);
            }
            hide_word(&arg, &mut next_is_secret)
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
    // `--token -x3k9`: a value may begin with a dash; `--token -v` and `--token --verbose` are options.
    let is_next_option = word.starts_with("--") || is_option && (word.len() <= 2 || is_secret_name(word));
    if std::mem::take(next_is_secret) && !is_next_option {
        // `Authorization: Bearer xyz`: the scheme is no secret, what follows is.
        if ["bearer", "basic"].contains(&word.to_ascii_lowercase().as_str()) {
            *next_is_secret = true;
            return word.into();
        }
        return HIDDEN.into();
    }
    let word = &*address::hide(word);
    if let Some((name, value)) = word.split_once('=').filter(|(name, _)| !name.contains("://")) {
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

/// A value that shows by its form that it is a key.
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
    value.into()
}

/// Whether this name of an option or variable says that its value is secret: by its last words, so that `--token-limit`
/// and `--password-file` stay.
fn is_secret_name(name: &str) -> bool {
    let words = words_of(name);
    let Some(last) = words.last() else { return false };
    let before = words.iter().rev().nth(1).map(String::as_str);
    let all_but = |innocent: &[&str]| before.is_some_and(|before| !innocent.contains(&before));
    match last.as_str() {
        "token" => return before.is_none() || all_but(INNOCENT_TOKENS),
        "key" => return all_but(INNOCENT_KEYS),
        "pass" => return all_but(INNOCENT_PASSES),
        _ => {}
    }
    SECRET_ENDS.iter().any(|end| last.ends_with(end))
        || SECRET_NAMES.iter().any(|secret| {
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
            (&["PGPASSWORD=abc", "WANDB_KEY=abc"], "PGPASSWORD=***|WANDB_KEY=***"),
            (&["--wandb-key", "abc", "--db-pass", "p", "--creds=V"], "--wandb-key|***|--db-pass|***|--creds=***"),
            (&["--token", "-abc", "--password", "-v"], "--token|***|--password|-v"),
            (&["--token", "-password", "abc"], "--token|-password|***"),
            (&[r#"{"user":"me","password":"a b\"c","n":1}"#], r#"{"user":"me","password":"***","n":1}"#),
            (&[r#"{"password": "a b", "api_key": "c"}"#], r#"{"password": *** "api_key": ***"#),
            (&["user:me,password:abc,n:1"], "user:me,password:***,n:1"),
            (&["--opts=user=me,password=abc"], "--opts=user=me,password=***"),
            (&["sh", "-c", "PASSWORD='a b' x"], "sh|-c|PASSWORD=*** x"),
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
            (&["https://me:secret@example.org/x?q=1"], "https://me:***@example.org/x?q=1"),
            (&["--url=https://me:p@h/x?token=abc&q=1"], "--url=https://me:***@h/x?token=***&q=1"),
            (&["https://h/x?q=1&X-Amz-Signature=abc#top"], "https://h/x?q=1&X-Amz-Signature=***#top"),
            (&["mysql://root:p=x@h/db"], "mysql://root:***@h/db"),
            (&["wget https://me:p@h/x?token=abc now"], "wget https://me:***@h/x?token=*** now"),
            (&["s3://AKIAIOSFODNN7EXAMPLE:p@bucket"], "s3://***:***@bucket"),
            (&["a=b://u:p@h,c://u:q@i"], "a=b://u:***@h,c://u:***@i"),
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
            "--sort-key=id",
            "--key=text",
            "--num-pass=2",
            "host:/data/x:ro",
            "https://example.org/x?page=2",
            "-v",
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
