//! What a process is called when people are told about it. A process chooses its own title: it may look like a kernel's
//! thread (`[kworker/0:1]`), hold slashes, or hide which program it is. So a title is shown whole, and beside a title
//! that does not name the program stands the program.

use super::{clean, display_command, file_name};
use crate::model::{Argv, Process};

/// The kernel keeps so many bytes of a name.
const LONGEST_COMM: usize = 15;

/// What is known of a process's name.
#[derive(Debug, Clone, Copy)]
pub struct Name<'a> {
    /// Its arguments; the first can be a title of its own choice.
    pub argv: &'a Argv,
    /// The kernel's short name, which it can change too.
    pub comm: &'a str,
    /// The file name of the program that runs, which it cannot; `None`: may not be read.
    pub program: Option<&'a str>,
}

impl<'a> From<&'a Process> for Name<'a> {
    fn from(process: &'a Process) -> Self {
        Self { argv: &process.argv, comm: &process.comm, program: process.program.as_deref() }
    }
}

impl Name<'_> {
    /// The command line, and the program beside a title.
    pub fn whole(&self) -> String {
        self.beside(display_command(self.argv, self.comm))
    }

    /// The same without the program's directory.
    pub fn short(&self) -> String {
        let line = display_command(self.argv, self.comm);
        let Some(first) = self.argv.first().filter(|first| first.contains('/') && self.is_path(first)) else {
            return self.beside(line);
        };
        let directory = clean(first.strip_suffix(file_name(first)).unwrap_or_default());
        self.beside(line.strip_prefix(directory.as_str()).unwrap_or(&line).to_owned())
    }

    fn beside(&self, line: String) -> String {
        match self.hidden_program() {
            Some(program) => format!("{line} ({})", clean(program)),
            None => line,
        }
    }

    /// The first argument leads to a program, and is no title that has slashes.
    fn is_path(&self, first: &str) -> bool {
        let name = file_name(first);
        match self.more_arguments() {
            true => first.starts_with(['/', '.']) || names(name, self.comm),
            false => {
                let named = names(name, self.comm) || self.program.is_some_and(|program| names(name, program));
                named && !first.contains(char::is_whitespace)
            }
        }
    }

    fn more_arguments(&self) -> bool {
        self.argv.words().iter().filter(|arg| !arg.is_empty()).nth(1).is_some()
    }

    /// The program, where the first argument does not name it.
    fn hidden_program(&self) -> Option<&str> {
        let first = self.argv.first().filter(|first| !first.is_empty())?;
        let first = first.strip_prefix('-').unwrap_or(first);
        let said = file_name(first);
        let told = |name: &str| names(said, name) || title_begins_with(first, name);
        match self.program {
            // `sh` is another file's second name, and so the kernel's short name is `sh`; a title sets that name as
            // well, but leaves no further arguments.
            Some(program) => (!(told(program) || self.more_arguments() && told(self.comm))).then_some(program),
            // Threads get names of their own, so beside several arguments the short name says nothing.
            None => (!self.more_arguments() && !told(self.comm) && !first.starts_with(self.comm)).then_some(self.comm),
        }
    }
}

/// `python3` names `python3.11`; a short name is cut.
fn names(said: &str, program: &str) -> bool {
    !said.is_empty() && (program.starts_with(said) || (program.len() >= LONGEST_COMM && said.starts_with(program)))
}

/// `nginx: worker process`.
fn title_begins_with(title: &str, program: &str) -> bool {
    title.strip_prefix(program).is_some_and(|rest| rest.starts_with(|c: char| !c.is_alphanumeric()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(argv: &[&str], comm: &str, program: Option<&str>) -> (String, String) {
        let argv: Argv = argv.iter().map(|a| (*a).to_owned()).collect();
        let name = Name { argv: &argv, comm, program };
        (name.whole(), name.short())
    }

    #[test]
    fn a_title_is_whole_and_the_program_stands_beside_it() {
        for (title, comm) in [
            ("[kworker/0:1]", "[kworker/0:1]"),
            ("epoch 3/90", "epoch 3/90"),
            ("/dev/shm/x", "/dev/shm/x"),
            ("VLLM::EngineCore", "VLLM::EngineCor"),
        ] {
            let shown = format!("{title} (python3.11)");
            assert_eq!(name(&[title, "", ""], comm, Some("python3.11")), (shown.clone(), shown));
        }
        // Whose program may not be read goes by the kernel's name, where that says more than the title.
        let shown = "[kworker/0:1] (python3)".to_owned();
        assert_eq!(name(&["[kworker/0:1]"], "python3", None), (shown.clone(), shown));
        assert_eq!(name(&["[kworker/0:1]"], "[kworker/0:1]", None).0, "[kworker/0:1]");
    }

    #[test]
    fn an_ordinary_command_line_is_no_title() {
        for (argv, comm, program, short) in [
            (&["/usr/bin/python3", "/home/a/train.py"][..], "python3", Some("python3.11"), "python3 /home/a/train.py"),
            (&["/opt/venv/bin/python", "train.py"], "pt_main_thread", Some("python3.11"), "python train.py"),
            (&["/opt/venv/bin/python", "train.py"], "pt_main_thread", None, "python train.py"),
            (&["python3", "bin/x"], "python3", Some("python3.11"), "python3 bin/x"),
            (&["bin/server"], "server", Some("server"), "server"),
            (&["./a_program_with_a_long_name"], "a_program_with_", None, "a_program_with_a_long_name"),
            (&["sh", "-c", "x"], "sh", Some("dash"), "sh -c x"),
            (&["-bash"], "bash", Some("bash"), "-bash"),
            (
                &["nginx: master process /usr/sbin/nginx"],
                "nginx",
                Some("nginx"),
                "nginx: master process /usr/sbin/nginx",
            ),
            (
                &["/usr/bin/python3", "/usr/bin/torchrun", "t.py"],
                "torchrun",
                Some("python3.11"),
                "python3 /usr/bin/torchrun t.py",
            ),
            (&[], "python3", None, "[python3]"),
            (&["venv/bin/python", "t.py"], "python", None, "python t.py"),
        ] {
            let (whole, said) = name(argv, comm, program);
            assert_eq!(said, short, "{argv:?}");
            assert!(argv.is_empty() || whole == argv.join(" "), "{whole}");
        }
        // Who calls himself something else on the command line is named too.
        assert_eq!(name(&["trainer", "x.py"], "python3", Some("python3.11")).0, "trainer x.py (python3.11)");
    }

    #[test]
    fn a_strangers_name_does_not_act() {
        let (whole, short) = name(&["/a\u{1b}[2J/x", "y"], "x", Some("x\u{7}z"));
        assert_eq!((whole.as_str(), short.as_str()), ("/a\\x1b[2J/x y", "x y"));
        assert_eq!(name(&["t"], "t", Some("x\u{7}")).0, "t (x\\x07)");
    }
}
