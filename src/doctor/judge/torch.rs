//! The installed PyTorch: whether it is one and whole, what it can say about memory, and which known faults it has.
//! Whether the driver serves its CUDA is in [`torch_cuda`].

use super::{Lines, alloc_conf, environment::ALLOC_CONF, torch_cuda};
use crate::{
    doctor::{
        facts::{Facts, Python, Torch},
        table::{Fault, Needs, Table},
        version::Version,
    },
    text,
};
use std::path::Path;

/// Where no path is known that could stand in a command.
const OTHER: &str = "another one is looked at with --python and the path of an interpreter or of an environment";

pub(super) fn judge(facts: &Facts, table: &Table, lines: &mut Lines) {
    let (interpreter, installs) = match &facts.python {
        Python::None(why) => {
            lines.hidden("torch", format!("PyTorch: {why}; {OTHER}"));
            return;
        }
        Python::Unclear(path, why) => {
            let program = pasted(path);
            lines.hidden("torch", format!("PyTorch of {}: {why}", path.display())).fix =
                Some(format!("gpuresid doctor --python \"$({program} -c 'import sys; print(sys.executable)')\""));
            return;
        }
        Python::Found { interpreter, torch, .. } => (interpreter, torch),
    };
    let Some(torch) = installs.first() else {
        lines.hidden("torch", format!("no PyTorch is installed for {}; {OTHER}", interpreter.display()));
        return;
    };
    let found = torch.version.as_ref().or(torch.metadata_version.as_ref());
    let Some(version) = found.and_then(|text| Version::parse(text)) else {
        lines.hidden(
            "torch",
            format!("the version of PyTorch in {}: its version.py cannot be read", torch.site.display()),
        );
        return;
    };
    lines.ok("torch", format!("PyTorch {version}, {} (read from its files)", torch.site.display()));
    whole(torch, installs, interpreter, lines);
    torch_cuda::judge(facts, torch, &version, table, interpreter, lines);
    apis(&version, table, lines);
    faults(facts, &version, table, interpreter, lines);
}

/// A program in a command to paste.
pub(super) fn pasted(program: &Path) -> String {
    text::shell_word(&program.to_string_lossy()).unwrap_or_else(|| "python3".into())
}

fn whole(torch: &Torch, installs: &[Torch], interpreter: &Path, lines: &mut Lines) {
    let release = |text: &Option<String>| text.as_deref().and_then(Version::parse);
    if let (Some(module), Some(package)) = (release(&torch.version), release(&torch.metadata_version))
        && module != package
    {
        lines.fail(
            "torch.install",
            format!("two versions are mixed: the files are {module}, pip says {package}"),
            format!("{} -m pip install --force-reinstall torch=={}", pasted(interpreter), package.release()),
        );
    }
    if let Some(other) = installs.get(1) {
        lines.warn(
            "torch.install",
            format!("another PyTorch is in {} and is hidden by this one", other.site.display()),
            format!("{} -m pip show -f torch", pasted(interpreter)),
        );
    }
}

fn apis(version: &Version, table: &Table, lines: &mut Lines) {
    let lacks = table.apis.iter().filter(|api| *version < api.since);
    let lacks: Vec<_> = lacks.map(|api| format!("{} (since {})", api.name, api.since)).collect();
    if lacks.is_empty() {
        lines.ok("torch.memory", "all of PyTorch's memory calls are there");
    } else {
        lines.ok("torch.memory", format!("it does not have {}", lacks.join(", ")));
    }
}

fn faults(facts: &Facts, version: &Version, table: &Table, interpreter: &Path, lines: &mut Lines) {
    let mut any = false;
    for fault in table.faults.iter().filter(|fault| applies(fault, version)) {
        // What nobody has shown is not held against a version.
        let Some(source) = &fault.source else { continue };
        if !fault.needs.as_ref().is_none_or(|needs| is_set(needs, facts, table)) {
            continue;
        }
        any = true;
        let fix = match fault.fix.as_deref() {
            Some(fix) if fix.starts_with("-m ") => format!("{} {fix}", pasted(interpreter)),
            Some(fix) => fix.into(),
            None => format!("see {source}"),
        };
        lines.warn(&format!("torch.fault.{}", fault.id), fault.text.clone(), fix).source = Some(source.clone());
    }
    if !any {
        lines.ok("torch.fault", format!("no memory bug of {} is known as it is set up here", version.release()));
    }
}

fn applies(fault: &Fault, version: &Version) -> bool {
    *version >= fault.from && fault.before.as_ref().is_none_or(|before| version < before)
}

fn is_set(needs: &Needs, facts: &Facts, table: &Table) -> bool {
    let names = ALLOC_CONF.iter().filter(|name| facts.environment.contains_key(**name));
    // The first that is set is the one that counts.
    let Some(name) = names.into_iter().next() else { return false };
    if needs.variable.as_ref().is_some_and(|variable| variable != name) {
        return false;
    }
    let text = facts.environment.get(*name).map_or("", String::as_str);
    let (settings, _) = alloc_conf::read(text, table, None);
    let has = |key: &String| settings.iter().any(|setting| setting.key == *key);
    settings.iter().any(|s| s.key == needs.option && s.value == needs.value)
        && (needs.together_with.is_empty() || needs.together_with.iter().any(has))
}
