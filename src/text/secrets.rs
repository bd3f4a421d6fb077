//! Hides values that look like secrets in command lines. Reports are pasted into tickets and kept by CI, so it errs on
//! the side of hiding; the name of an option always stays, because it helps to recognise the program.

mod address;
mod names;
mod pairs;

use names::Value;

const HIDDEN: &str = "***";

/// `argv` with the values of secrets replaced by `***`.
pub(super) fn hide(argv: &[String]) -> Vec<String> {
    let mut words = Words::default();
    argv.iter()
        .map(|arg| {
            if words.next != Next::Plain {
                return words.hide(arg);
            }
            let arg = pairs::hide(arg);
            if arg.contains(char::is_whitespace) {
                return hide_line(&arg);
            }
            words.hide(&arg)
        })
        .collect()
}

/// An argument that is a line of its own: `bash -c "HF_TOKEN=… python train.py"`, or a header.
fn hide_line(line: &str) -> String {
    let mut words = Words::default();
    let mut out = String::with_capacity(line.len());
    for piece in line.split_inclusive(char::is_whitespace) {
        let word = piece.trim_end_matches(char::is_whitespace);
        if word.is_empty() {
            out.push_str(piece);
            continue;
        }
        out.push_str(&words.hide(word));
        out.push_str(piece.get(word.len()..).unwrap_or_default());
    }
    out
}

/// What the words so far say of the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Next {
    #[default]
    Plain,
    /// The value of an option that was named.
    Secret,
    /// `user:password`
    Login,
    /// A part of a secret header, which ends with this quote, else with the line.
    Header(Option<char>),
}

/// Words one after the other.
#[derive(Debug, Default)]
struct Words {
    next: Next,
    /// The options that are secret with the programs that were named.
    options: Vec<(&'static str, Value)>,
    /// A word was there.
    begun: bool,
}

impl Words {
    fn hide(&mut self, word: &str) -> String {
        let first = !std::mem::replace(&mut self.begun, true);
        let is_option = word.starts_with('-');
        // `--token -x3k9`: a value may begin with a dash; `--token -v` and `--token --verbose` are options.
        let is_next_option = word.starts_with("--") || is_option && (word.len() <= 2 || is_secret_name(word));
        match std::mem::take(&mut self.next) {
            Next::Secret if !is_next_option => {
                // `Authorization: Bearer xyz`: the scheme is no secret, what follows is.
                if is_scheme(word) {
                    self.next = Next::Secret;
                    return word.into();
                }
                return HIDDEN.into();
            }
            Next::Login if !is_next_option => return hide_login(word),
            Next::Header(quote) => {
                let ends = quote.is_some_and(|quote| word.ends_with(quote));
                if !ends {
                    self.next = Next::Header(quote);
                }
                return if is_scheme(word) {
                    word.into()
                } else {
                    format!("{HIDDEN}{}", quote.filter(|_| ends).map_or(String::new(), String::from))
                };
            }
            _ => {}
        }
        if let Some(hidden) = self.of_program(word) {
            return hidden;
        }
        let word = &*address::hide(word);
        if let Some((name, value)) = word.split_once('=').filter(|(name, _)| !name.contains("://")) {
            if let Some(end) = end_of_secret_name(word) {
                return format!("{}{HIDDEN}", word.get(..end).unwrap_or_default());
            }
            if names::LOGINS.contains(&name) {
                return format!("{name}={}", hide_login(value));
            }
            if self.begins_header(value, first) {
                return word.into();
            }
            return format!("{name}={}", hide_value(value));
        }
        if names::LOGINS.contains(&word) {
            self.next = Next::Login;
            return word.into();
        }
        if is_option && is_secret_name(word) {
            self.next = Next::Secret;
            return word.into();
        }
        if self.begins_header(word, first) {
            return word.into();
        }
        if word.eq_ignore_ascii_case("bearer") {
            self.next = Next::Secret;
            return word.into();
        }
        match ["-u", "-U"].iter().find_map(|option| Some((option, word.strip_prefix(option)?))) {
            Some((option, login)) if !login.contains("://") => format!("{option}{}", hide_login(login)),
            _ => hide_value(word),
        }
    }

    /// `Authorization:`, and all that follows in its quotes, or in a line that is nothing else.
    fn begins_header(&mut self, word: &str, first: bool) -> bool {
        let quote = word.chars().next().filter(|c| matches!(c, '"' | '\''));
        let Some(name) = word.trim_start_matches(['"', '\'']).strip_suffix(':').filter(|name| is_secret_name(name))
        else {
            return false;
        };
        // `{"password": …` is none.
        let is_header = name.chars().all(|c| c.is_alphanumeric() || "_-".contains(c));
        self.next = if is_header && (first || quote.is_some()) { Next::Header(quote) } else { Next::Secret };
        true
    }

    /// An option that is secret with one of the programs that were named before it.
    fn of_program(&mut self, word: &str) -> Option<String> {
        let name = word.rsplit('/').next().unwrap_or(word);
        let known = names::PROGRAMS.iter().filter(|(programs, ..)| programs.contains(&name));
        self.options.extend(known.map(|(_, option, value)| (*option, *value)));
        for (option, value) in &self.options {
            match word.strip_prefix(option) {
                Some("") if *value == Value::GluedOrNext => {
                    self.next = Next::Secret;
                    return Some(word.into());
                }
                Some(glued) if !glued.is_empty() => return Some(format!("{option}{HIDDEN}")),
                _ => {}
            }
        }
        None
    }
}

/// Where the value begins in `TOKEN=…` and `--env=TOKEN=…`.
fn end_of_secret_name(word: &str) -> Option<usize> {
    let mut start = 0;
    for (at, mark) in word.match_indices('=') {
        let (name, value) = (word.get(start..at)?, word.get(at + mark.len()..)?);
        if name.contains("://") || value.is_empty() {
            return None;
        }
        if is_secret_name(name) && !is_pass_number(name, value) {
            return Some(at + mark.len());
        }
        start = at + mark.len();
    }
    None
}

fn is_scheme(word: &str) -> bool {
    ["bearer", "basic"].iter().any(|scheme| word.eq_ignore_ascii_case(scheme))
}

/// `user:password`, and Samba's `user%password`; two numbers are a user and a group.
fn hide_login(word: &str) -> String {
    let is_number = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    match word.split_once([':', '%']) {
        Some((user, password)) if !is_number(password) && !word.contains("://") => {
            let mark = word.get(user.len()..=user.len()).unwrap_or_default();
            format!("{user}{mark}{HIDDEN}")
        }
        _ => hide_value(&address::hide(word)),
    }
}

/// `-pass 2` is a pass over a film.
fn is_pass_number(name: &str, value: &str) -> bool {
    name.trim_start_matches('-') == "pass" && value.bytes().all(|b| b.is_ascii_digit())
}

/// A value that shows by its form that it is a key.
fn hide_value(value: &str) -> String {
    let bare = value.trim_matches(['"', '\'', '(', ')', ',', ';']);
    let is_key = names::KEY_PREFIXES
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
        "token" => return before.is_none() || all_but(names::INNOCENT_TOKENS),
        "key" => return all_but(names::INNOCENT_KEYS),
        "pass" => return before.is_none() || all_but(names::INNOCENT_PASSES),
        _ => {}
    }
    names::SECRET_ENDS.iter().any(|end| last.ends_with(end))
        || names::SECRET.iter().any(|secret| {
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
    fn every_way_to_name_a_secret_is_known() {
        for (line, shown) in [
            ("docker run --env=API_TOKEN=abc -e HF_TOKEN=abc x", "docker run --env=API_TOKEN=*** -e HF_TOKEN=*** x"),
            ("x --jwt abc --cookie abc --pass abc y", "x --jwt *** --cookie *** --pass *** y"),
            ("x --otp=1 --client-secret abc --clientSecret=abc", "x --otp=*** --client-secret *** --clientSecret=***"),
            ("curl --oauth2-bearer abc -b sid=abc", "curl --oauth2-bearer *** -b ***"),
            ("curl -u ann:abc --proxy-user bo:abc http://h", "curl -u ann:*** --proxy-user bo:*** http://h"),
            ("curl -uann:abc --user=ann:abc", "curl -uann:*** --user=ann:***"),
            ("smbclient -U ann%abc //h/s", "smbclient -U ann%*** //h/s"),
            ("openssl rsa -passin pass:abc -passout pass:abc", "openssl rsa -passin *** -passout ***"),
            ("openssl enc -pass pass:abc -k abc", "openssl enc -pass *** -k ***"),
            ("x pass:abc", "x pass:***"),
            ("mysql -uroot -pabc db", "mysql -uroot -p*** db"),
            ("docker exec db /usr/bin/mysqldump -pabc", "docker exec db /usr/bin/mysqldump -p***"),
            ("sshpass -p abc ssh h", "sshpass -p *** ssh h"),
            ("7z a -pabc x.7z", "7z a -p*** x.7z"),
            ("docker login -u ann -p abc", "docker login -u ann -p ***"),
            ("unzip -P abc x.zip", "unzip -P *** x.zip"),
            ("redis-cli -a abc ping", "redis-cli -a *** ping"),
            ("ldapsearch -w abc -x", "ldapsearch -w *** -x"),
        ] {
            let argv: Vec<&str> = line.split(' ').collect();
            assert_eq!(hidden(&argv).replace('|', " "), shown);
            // The same in a line for a shell.
            assert_eq!(hidden(&["sh", "-c", line]), format!("sh|-c|{shown}"));
        }
    }

    #[test]
    fn headers_are_hidden_to_their_end() {
        for (args, shown) in [
            (&["curl", "--header=X-Api-Key: abc"][..], "curl|--header=X-Api-Key: ***"),
            (&["curl", "--header", "X-Api-Key: abc def"], "curl|--header|X-Api-Key: *** ***"),
            (&["curl", "-H", "Cookie: sid=abc; theme=dark"], "curl|-H|Cookie: *** ***"),
            (&["curl", "-HX-Api-Key:abc"], "curl|-HX-Api-Key:***"),
            (&["curl", "-H", "Accept: text/html"], "curl|-H|Accept: text/html"),
            (
                &["sh", "-c", "curl -H 'Cookie: sid=abc; b=c' -H \"Authorization: Bearer abc\" h"],
                "sh|-c|curl -H 'Cookie: *** ***' -H \"Authorization: Bearer ***\" h",
            ),
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
            "-p8080:80",
            "-pthread",
            "-p",
            "--pass=2",
            "-u",
            "--compass",
            "--cookie-jar",
        ] {
            assert_eq!(hidden(&[arg]), arg);
        }
        for line in [
            "docker run -u 1000:1000 -p 8080:80 x",
            "python -u train.py --epochs 3",
            "ssh -p 2222 h",
            "mkdir -p a/b",
            "mysql -P 3306 -p db",
            "sudo -u ann python x.py",
        ] {
            assert_eq!(hidden(&line.split(' ').collect::<Vec<_>>()).replace('|', " "), line);
        }
        assert_eq!(hidden(&["--eos-token", "</s>", "--token", "--verbose"]), "--eos-token|</s>|--token|--verbose");
    }
}
