//! Which processes of the run used the GPU without telling, and why: not Python, Python that was told to ignore its
//! environment, an environment that lost our directory, or no PyTorch.

use super::identify;
use crate::{
    judge::{lineage::Person, run::Run},
    model::{Gap, Lineage, ProcId, Seen, TorchView},
};
use std::collections::BTreeMap;

/// One gap for each reason.
pub(super) fn gaps(run: &Run<'_>, view: &TorchView) -> Vec<Gap> {
    let told: Vec<ProcId> = view
        .records
        .iter()
        .filter_map(|r| identify(run, ProcId { pid: r.pid, start_ticks: r.start_ticks }))
        .map(|s| s.id)
        .collect();
    let mut silent: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for seen in run.trace.seen.iter().filter(|s| s.listed && !told.contains(&s.id)) {
        if run.lineage(Person::from(seen)) == Lineage::Own {
            silent.entry(reason(seen, view)).or_default().push(seen.id.pid);
        }
    }
    silent
        .into_iter()
        .map(|(reason, pids)| {
            let pids: Vec<String> = pids.iter().map(ToString::to_string).collect();
            Gap::new("PyTorch", format!("no view into process {}: {reason}", pids.join(", ")))
        })
        .collect()
}

fn reason(seen: &Seen, view: &TorchView) -> String {
    let start = view.started.iter().find(|s| s.id == seen.id);
    let program = seen.argv.first().map_or(seen.comm.as_str(), String::as_str);
    let name = program.rsplit('/').next().unwrap_or(program);
    if let Some(start) = start {
        return match start.forked_from {
            Some(parent) => format!(
                "it was forked from PID {parent} after that one had initialised CUDA, where PyTorch refuses CUDA; what it \
                 keeps is that one's"
            ),
            None => "PyTorch did not use CUDA in it (another library did), it ended before its first sample, or it could not \
                     write what it saw (another user by then, another root directory, a full disk)"
                .into(),
        };
    }
    if !is_python(name) && !is_python(&seen.comm) {
        return format!("it is no Python program (`{name}`), or one that hides its name");
    }
    if let Some(option) = ignores_environment(seen.argv.words()) {
        return format!("Python was started with -{option}, which {}", meaning(option));
    }
    if seen.marker.is_none() {
        return "its environment does not have what `check` gave the command (env -i, sudo, a container, or a changed \
                process title)"
            .into();
    }
    "the probe did not run in it: PYTHONPATH was set anew, it runs as another user or in a container, or its Python is \
     older than 3.8"
        .into()
}

fn is_python(name: &str) -> bool {
    ["python", "pypy", "ipython", "pt_main_thread", "torchrun"].iter().any(|known| name.starts_with(known))
}

/// The option that keeps the probe out, if there is one before the program's own arguments.
fn ignores_environment(argv: &[String]) -> Option<char> {
    let mut words = argv.iter().skip(1);
    while let Some(word) = words.next() {
        let letters = word.strip_prefix('-').filter(|rest| !rest.starts_with('-') && !rest.is_empty())?;
        for letter in letters.chars() {
            match letter {
                'S' | 'E' | 'I' => return Some(letter),
                // What follows is the program, or text.
                'c' | 'm' => return None,
                // These take the rest of the word, or the next one.
                'W' | 'X' => {
                    if letters.ends_with(letter) {
                        words.next();
                    }
                    break;
                }
                _ => {}
            }
        }
    }
    None
}

const fn meaning(option: char) -> &'static str {
    match option {
        'S' => "runs no sitecustomize; without -S it can be seen",
        'E' => "ignores PYTHONPATH; without -E it can be seen",
        _ => "ignores the environment; without -I it can be seen",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn option(line: &str) -> Option<char> {
        ignores_environment(&line.split(' ').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn only_options_of_python_itself_count() {
        for (line, found) in [
            ("python -S train.py", Some('S')),
            ("python3 -uE -m train", Some('E')),
            ("python -X dev -I train.py", Some('I')),
            ("python -W ignore -BS train.py", Some('S')),
            ("python -WIgnore train.py", None),
            ("python train.py -S", None),
            ("python -m train -E", None),
            ("python -c pass -I", None),
            ("python -mSite", None),
            ("python --version", None),
            ("python", None),
        ] {
            assert_eq!(option(line), found, "{line}");
        }
    }
}
