//! Which PyTorch a Python would import, from its files alone: nothing is imported and no interpreter is run, because
//! a broken installation is what people come with, and starting theirs could run anything.

use crate::{
    doctor::facts::{Python, Torch},
    error::hinted,
};
use std::{
    collections::BTreeMap,
    fs,
    io::Read as _,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

/// What a bare command line would find, in this order.
const NAMES: [&str; 2] = ["python3", "python"];

/// More of a file is not read: the longest of those that are has some 40 kB.
const LARGEST: u64 = 1 << 20;

/// The text of a regular file. A named pipe would be waited for, and a device may have no end.
fn text_of(path: &Path) -> Option<String> {
    let without_waiting = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or_default();
    let file = fs::File::options().read(true).custom_flags(without_waiting).open(path).ok()?;
    let mut bytes = Vec::new();
    file.metadata().ok().filter(fs::Metadata::is_file)?;
    file.take(LARGEST).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Refuses a path that cannot be a Python, before anything is looked at.
///
/// # Errors
/// If there is nothing at `path`, or it is a directory without an interpreter.
pub fn must_be_there(path: &Path) -> anyhow::Result<()> {
    let why = match fs::metadata(path) {
        Ok(facts) if !facts.is_dir() || resolve(path.into()) != path => return Ok(()),
        Ok(_) => "there is no bin/python in this directory".to_owned(),
        Err(_) if path.is_symlink() => "it is a link that leads nowhere".to_owned(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => "there is no such path".to_owned(),
        Err(error) => error.to_string(),
    };
    Err(hinted(
        format!("--python {}: {why}", path.display()),
        "name an interpreter, or the directory of an environment that has bin/python; without --python the first on PATH \
         is looked at",
    ))
}

/// Reads the Python at `path` (an interpreter, or the directory of an environment), or the first on `PATH`.
pub fn look(path: Option<PathBuf>, environment: &BTreeMap<String, String>) -> Python {
    let Some(interpreter) = path.map(resolve).or_else(on_path) else {
        return Python::None("no python3 and no python on PATH".into());
    };
    if !interpreter.is_file() {
        return Python::None(format!("{} is neither an interpreter nor an environment", interpreter.display()));
    }
    if is_script(&interpreter) {
        return Python::Unclear(interpreter, "it is a script that starts another Python".into());
    }
    let mut searched: Vec<PathBuf> = environment
        .get("PYTHONPATH")
        .map(|list| list.split(':').filter(|d| !d.is_empty()).map(PathBuf::from).collect())
        .unwrap_or_default();
    searched.extend(site_directories(&interpreter, std::env::var_os("HOME").map(PathBuf::from).as_deref()));
    searched.retain(|directory| directory.is_dir());
    dedup(&mut searched);
    let torch = searched.iter().filter_map(|site| torch_in(site)).collect();
    Python::Found { interpreter, searched, torch }
}

fn resolve(path: PathBuf) -> PathBuf {
    let inside = |names: &[&str]| names.iter().map(|n| path.join("bin").join(n)).find(|p| p.is_file());
    if path.is_dir() { inside(&NAMES).unwrap_or(path) } else { path }
}

fn on_path() -> Option<PathBuf> {
    let list = std::env::var_os("PATH")?;
    NAMES.iter().find_map(|name| std::env::split_paths(&list).map(|d| d.join(name)).find(|file| file.is_file()))
}

/// pyenv and its like put scripts on the PATH.
fn is_script(path: &Path) -> bool {
    let mut start = [0; 2];
    fs::File::open(path).is_ok_and(|mut file| file.read_exact(&mut start).is_ok()) && start == *b"#!"
}

fn dedup(list: &mut Vec<PathBuf>) {
    let mut seen: Vec<PathBuf> = Vec::new();
    list.retain(|directory| {
        let real = fs::canonicalize(directory).unwrap_or_else(|_| directory.clone());
        let new = !seen.contains(&real);
        if new {
            seen.push(real);
        }
        new
    });
}

/// Where the interpreter looks for packages, in its order. A virtual environment is known by the `pyvenv.cfg` beside
/// its `bin`; links are followed only where there is none, as Python does.
fn site_directories(interpreter: &Path, home: Option<&Path>) -> Vec<PathBuf> {
    let Some(prefix) = interpreter.parent().and_then(Path::parent) else { return Vec::new() };
    let Some(settings) = text_of(&prefix.join("pyvenv.cfg")) else {
        let real = fs::canonicalize(interpreter).unwrap_or_else(|_| interpreter.into());
        return installed(&real, home);
    };
    let setting = |name: &str| {
        settings
            .lines()
            .filter_map(|line| line.split_once('='))
            .find_map(|(key, value)| key.trim().eq_ignore_ascii_case(name).then(|| value.trim().to_owned()))
    };
    let mut all = of_prefix(prefix, None);
    if setting("include-system-site-packages").is_some_and(|value| value.eq_ignore_ascii_case("true"))
        && let Some(base) = setting("home")
    {
        let name = fs::canonicalize(interpreter).ok().and_then(|real| real.file_name().map(ToOwned::to_owned));
        let base = Path::new(&base).join(name.unwrap_or_else(|| "python3".into()));
        all.extend(installed(&fs::canonicalize(&base).unwrap_or(base), home));
    }
    all
}

/// The directories of an interpreter that belongs to no virtual environment.
fn installed(real: &Path, home: Option<&Path>) -> Vec<PathBuf> {
    let Some(prefix) = real.parent().and_then(Path::parent) else { return Vec::new() };
    let version = real.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_prefix("python"));
    let version = version.filter(|v| v.contains('.'));
    let mut all = Vec::new();
    if let Some(home) = home {
        all.extend(of_prefix(&home.join(".local"), version));
    }
    if prefix == Path::new("/usr") {
        all.extend(of_prefix(Path::new("/usr/local"), version));
    }
    all.extend(of_prefix(prefix, version));
    // Debian keeps the packages of all its versions here.
    all.push(prefix.join("lib/python3/dist-packages"));
    all
}

/// `lib/python3.12/site-packages` and its relatives below a prefix, for one version or whatever is there.
fn of_prefix(prefix: &Path, version: Option<&str>) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for lib in ["lib", "lib64"] {
        let Ok(entries) = fs::read_dir(prefix.join(lib)) else { continue };
        let mut pythons: Vec<PathBuf> = entries
            .flatten()
            .filter(|entry| {
                let name = entry.file_name();
                let found = name.to_str().and_then(|name| name.strip_prefix("python"));
                // Free-threaded builds end in a `t`.
                found.is_some_and(|found| match version {
                    Some(version) => found.trim_end_matches('t') == version.trim_end_matches('t'),
                    None => found.contains('.'),
                })
            })
            .map(|entry| entry.path())
            .collect();
        pythons.sort();
        for python in pythons {
            all.extend(["site-packages", "dist-packages"].map(|name| python.join(name)));
        }
    }
    all
}

/// The PyTorch in this directory.
fn torch_in(site: &Path) -> Option<Torch> {
    let package = site.join("torch");
    // A directory without code is what an uninstall leaves behind, or a checkout's folder of that name.
    if !package.join("__init__.py").exists() && !package.join("version.py").exists() {
        return None;
    }
    let text = text_of(&package.join("version.py")).unwrap_or_default();
    Some(Torch {
        site: site.into(),
        version: assigned(&text, "__version__"),
        metadata_version: metadata_version(site),
        cuda: assigned(&text, "cuda"),
        hip: assigned(&text, "hip"),
        tells_cuda: text.lines().any(|line| target(line) == Some("cuda")),
    })
}

/// The text that `name` is set to at the top of a module; `None` too where it is set to `None`.
fn assigned(module: &str, name: &str) -> Option<String> {
    module.lines().filter(|line| target(line) == Some(name)).find_map(|line| {
        let (_, value) = line.split_once('=')?;
        let value = value.trim();
        let quote = value.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
        Some(value.get(1..)?.split(quote).next()?.to_owned())
    })
}

/// What a line at the top of a module sets.
fn target(line: &str) -> Option<&str> {
    let target = line.split_once('=')?.0.split(':').next()?;
    (target == target.trim_start()).then(|| target.trim())
}

fn metadata_version(site: &Path) -> Option<String> {
    fs::read_dir(site).ok()?.flatten().find_map(|entry| {
        let name = entry.file_name();
        let name = name.to_str()?;
        let rest = name.strip_prefix("torch-")?;
        let file = match rest {
            rest if rest.ends_with(".dist-info") => "METADATA",
            rest if rest.ends_with(".egg-info") => "PKG-INFO",
            _ => return None,
        };
        let text = text_of(&entry.path().join(file))?;
        text.lines()
            .take_while(|line| !line.is_empty())
            .find_map(|line| line.strip_prefix("Version:"))
            .map(|v| v.trim().to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const VERSION: &str = "from typing import Optional\n\n__all__ = ['__version__', 'cuda']\n\
        __version__ = '2.11.0+cu130'\ndebug = False\ncuda: Optional[str] = '13.0'\ngit_version = 'abc'\n\
        hip: Optional[str] = None\nxpu: Optional[str] = None\n";

    #[test]
    fn the_version_module_is_read_without_running_it() {
        assert_eq!(assigned(VERSION, "__version__").as_deref(), Some("2.11.0+cu130"));
        assert_eq!(assigned(VERSION, "cuda").as_deref(), Some("13.0"));
        assert_eq!(assigned(VERSION, "hip"), None);
        assert_eq!(assigned("cuda = \"10.2\"\n", "cuda").as_deref(), Some("10.2"));
        assert_eq!(assigned("def f():\n    cuda = '9'\n", "cuda"), None);
    }

    fn install(site: &Path, version: &str) {
        fs::create_dir_all(site.join("torch")).unwrap();
        fs::write(site.join("torch/version.py"), format!("__version__ = '{version}'\ncuda = '12.6'\n")).unwrap();
        let info = site.join(format!("torch-{version}.dist-info"));
        fs::create_dir_all(&info).unwrap();
        fs::write(
            info.join("METADATA"),
            format!("Metadata-Version: 2.1\nName: torch\nVersion: {version}\n\nVersion: 9"),
        )
        .unwrap();
    }

    fn interpreter(prefix: &Path, name: &str) -> PathBuf {
        let bin = prefix.join("bin");
        fs::create_dir_all(&bin).unwrap();
        fs::write(bin.join(name), "\x7fELF").unwrap();
        bin.join(name)
    }

    fn versions(python: &Python) -> Vec<&str> {
        match python {
            Python::Found { torch, .. } => torch.iter().filter_map(|t| t.version.as_deref()).collect(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_environment_has_its_own_packages_and_the_systems_only_if_it_says_so() {
        let root = tempfile::tempdir().unwrap();
        let base = interpreter(&root.path().join("base"), "python3.12");
        install(&root.path().join("base/lib/python3.12/site-packages"), "2.5.0");
        install(&root.path().join("base/lib/python3.9/site-packages"), "1.9.0");
        let environment = BTreeMap::new();
        assert_eq!(versions(&look(Some(base.clone()), &environment)), ["2.5.0"]);

        let venv = root.path().join("venv");
        fs::create_dir_all(venv.join("bin")).unwrap();
        std::os::unix::fs::symlink(&base, venv.join("bin/python3")).unwrap();
        let home = base.parent().unwrap().display().to_string();
        let settings = |system: bool| format!("home = {home}\ninclude-system-site-packages = {system}\n");
        fs::write(venv.join("pyvenv.cfg"), settings(false)).unwrap();
        fs::create_dir_all(venv.join("lib/python3.12/site-packages")).unwrap();
        assert_eq!(versions(&look(Some(venv.clone()), &environment)), [""; 0]);
        fs::write(venv.join("pyvenv.cfg"), settings(true)).unwrap();
        assert_eq!(versions(&look(Some(venv.join("bin/python3")), &environment)), ["2.5.0"]);
        install(&venv.join("lib/python3.12/site-packages"), "2.11.0");
        assert_eq!(versions(&look(Some(venv.clone()), &environment)), ["2.11.0", "2.5.0"]);
        let before = root.path().join("before");
        install(&before, "2.0.1");
        let environment = BTreeMap::from([("PYTHONPATH".to_string(), before.to_str().unwrap().to_string())]);
        assert_eq!(versions(&look(Some(venv), &environment)), ["2.0.1", "2.11.0", "2.5.0"]);
    }

    #[test]
    fn metadata_and_module_are_both_read() {
        let root = tempfile::tempdir().unwrap();
        install(root.path(), "2.9.1");
        let torch = torch_in(root.path()).unwrap();
        assert_eq!(torch.metadata_version.as_deref(), Some("2.9.1"));
        assert_eq!((torch.version.as_deref(), torch.cuda.as_deref()), (Some("2.9.1"), Some("12.6")));
        fs::remove_file(root.path().join("torch/version.py")).unwrap();
        assert_eq!(torch_in(root.path()), None, "an empty directory is no install");
    }

    #[test]
    fn nothing_is_waited_for_and_nothing_guessed() {
        let root = tempfile::tempdir().unwrap();
        install(root.path(), "2.9.1");
        assert!(torch_in(root.path()).unwrap().tells_cuda);
        let version = root.path().join("torch/version.py");
        fs::write(&version, "__version__ = '2.9.1'\ncuda = None\n").unwrap();
        assert!(torch_in(root.path()).unwrap().tells_cuda);
        fs::write(&version, b"# \xff\n__version__ = '2.9.1'\ncuda = '13.0'\n").unwrap();
        assert_eq!(torch_in(root.path()).unwrap().cuda.as_deref(), Some("13.0"));
        let metadata = root.path().join("torch-2.9.1.dist-info/METADATA");
        for file in [&version, &metadata] {
            fs::remove_file(file).unwrap();
            rustix::fs::mkfifoat(rustix::fs::CWD, file, rustix::fs::Mode::RUSR).unwrap();
        }
        let torch = torch_in(root.path()).unwrap();
        assert_eq!((torch.version, torch.metadata_version, torch.tells_cuda), (None, None, false));
        fs::remove_file(&version).unwrap();
        std::os::unix::fs::symlink("/dev/zero", &version).unwrap();
        assert_eq!(torch_in(root.path()).unwrap().version, None);
    }

    #[test]
    fn scripts_and_missing_interpreters_are_said() {
        let root = tempfile::tempdir().unwrap();
        let shim = root.path().join("python3");
        fs::write(&shim, "#!/bin/sh\nexec pyenv\n").unwrap();
        assert!(matches!(look(Some(shim), &BTreeMap::new()), Python::Unclear(..)));
        assert!(matches!(look(Some(root.path().join("none")), &BTreeMap::new()), Python::None(_)));
        assert!(matches!(look(Some(root.path().into()), &BTreeMap::new()), Python::None(_)));
    }

    #[test]
    fn what_cannot_be_a_python_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let link = root.path().join("link");
        std::os::unix::fs::symlink(root.path().join("gone"), &link).unwrap();
        let refused = |path: &Path| must_be_there(path).unwrap_err().to_string();
        assert_eq!(refused(Path::new("/no/such")), "--python /no/such: there is no such path");
        assert!(refused(root.path()).ends_with(": there is no bin/python in this directory"));
        assert!(refused(&link).ends_with(": it is a link that leads nowhere"));
        let python = interpreter(root.path(), "python");
        assert!(must_be_there(root.path()).is_ok() && must_be_there(&python).is_ok());
    }
}
