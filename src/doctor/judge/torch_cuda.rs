//! Whether the driver serves the CUDA that PyTorch was built for, and which build of PyTorch it would serve. Apart from
//! the rest of what is said about PyTorch, because it is the one part that joins three tables.

use super::{Lines, driver, torch::pasted};
use crate::doctor::{
    facts::{Facts, Torch},
    table::Table,
    version::Version,
};
use std::path::Path;

const CHECK: &str = "torch.cuda";

/// The driver as far as it matters here.
struct Here<'a> {
    table: &'a Table,
    /// Its version.
    driver: Option<Version>,
    /// The CUDA that it reports.
    cuda: Option<Version>,
}

pub(super) fn judge(
    facts: &Facts,
    torch: &Torch,
    version: &Version,
    table: &Table,
    interpreter: &Path,
    lines: &mut Lines,
) {
    let parsed = |text: Option<String>| text.as_deref().and_then(Version::parse);
    let here = Here { table, driver: parsed(driver::version(facts)), cuda: parsed(driver::cuda(facts)) };
    if let Some(hip) = &torch.hip {
        let text = format!("this PyTorch is built for AMD (ROCm {hip}) and does not see an NVIDIA GPU");
        lines.warn(CHECK, text, here.another(version, interpreter).command);
        return;
    }
    let Some(cuda) = torch.cuda.as_deref().and_then(Version::parse) else {
        if !torch.tells_cuda {
            let site = torch.site.display();
            lines.hidden(CHECK, format!("for which CUDA PyTorch in {site} is built: its version.py does not tell"));
            return;
        }
        let text = "this PyTorch is built without CUDA and uses no GPU";
        lines.warn(CHECK, text, here.another(version, interpreter).command);
        return;
    };
    match table.driver_for(&cuda) {
        Some(row) => match &here.driver {
            None => {
                let text = format!(
                    "PyTorch's CUDA {cuda} needs driver {} or newer; there is none to compare with",
                    row.driver
                );
                lines.hidden(CHECK, text).source = Some(row.source.clone());
            }
            Some(driver) if *driver < row.driver => {
                too_old(&here, driver, &cuda, &row.driver, version, interpreter, lines, &row.source);
            }
            Some(driver) => serves(&here, driver, &cuda, &row.driver, lines, &row.source),
        },
        None => unknown(&here, &cuda, lines),
    }
}

/// The driver is as new as the table asks for. What it reports itself may still say something else.
fn serves(here: &Here<'_>, driver: &Version, cuda: &Version, least: &Version, lines: &mut Lines, source: &str) {
    let line = match &here.cuda {
        Some(reported) if cuda > reported => {
            if cuda.major() != reported.major() || *cuda < here.table.minor_versions.since {
                lines.hidden(
                    CHECK,
                    format!(
                        "PyTorch's CUDA {cuda} needs driver {least} or newer, which {driver} is, but the driver reports \
                         CUDA {reported}"
                    ),
                )
            } else {
                lines.ok(
                    CHECK,
                    format!(
                        "driver {driver} reports CUDA {reported} and serves PyTorch's CUDA {cuda} too, by minor version \
                         compatibility within CUDA {}; kernels that come as PTX of CUDA {cuda} need a newer driver",
                        cuda.major()
                    ),
                )
            }
        }
        _ => lines.ok(CHECK, format!("driver {driver} serves PyTorch's CUDA {cuda} (it needs {least} or newer)")),
    };
    line.source = Some(source.into());
}

/// A CUDA of which the table knows no driver: newer than this gpuresid, or very old.
fn unknown(here: &Here<'_>, cuda: &Version, lines: &mut Lines) {
    match &here.cuda {
        Some(reported) if cuda <= reported => {
            let text = format!("the driver reports CUDA {reported}, and serves PyTorch's CUDA {cuda} as well");
            lines.ok(CHECK, text).source = Some(here.table.minor_versions.source.clone());
        }
        Some(reported) => {
            let text = format!(
                "this gpuresid knows no driver for PyTorch's CUDA {cuda}; the driver here reports CUDA {reported}"
            );
            lines.hidden(CHECK, text);
        }
        None => {
            lines.hidden(CHECK, format!("this gpuresid knows no driver for PyTorch's CUDA {cuda}"));
        }
    }
}

#[expect(clippy::too_many_arguments, reason = "all of it stands in one sentence and its fix")]
fn too_old(
    here: &Here<'_>,
    driver: &Version,
    cuda: &Version,
    least: &Version,
    version: &Version,
    interpreter: &Path,
    lines: &mut Lines,
    source: &str,
) {
    let too_old = format!("driver {driver} is too old for PyTorch's CUDA {cuda}, which needs {least} or newer");
    let another = here.another(version, interpreter);
    let (choice, fix) = match another.found {
        Found::SameVersion => (", or take the build for an older CUDA".into(), another.command),
        Found::OtherVersion => (
            format!(", or take an older PyTorch: no build of {} for this driver is known", version.release()),
            another.command,
        ),
        Found::Nowhere => (String::new(), format!("sudo apt install nvidia-driver-{}", least.major())),
    };
    lines.fail(CHECK, format!("{too_old}: upgrade the driver{choice}"), fix).source = Some(source.into());
}

/// How to install a PyTorch that the driver serves.
struct Another {
    command: String,
    found: Found,
}

/// What is known of it.
enum Found {
    /// The installed version, built for a CUDA that the driver serves.
    SameVersion,
    /// Whatever version the index has that the driver serves.
    OtherVersion,
    /// No index is known for this driver.
    Nowhere,
}

impl Here<'_> {
    fn another(&self, version: &Version, interpreter: &Path) -> Another {
        let python = pasted(interpreter);
        let pinned = format!("{python} -m pip install --force-reinstall torch=={}", version.release());
        let bare = format!("{python} -m pip install --force-reinstall torch");
        let build = self.table.build_of(version);
        let Some(driver) = &self.driver else {
            return Another { command: if build.is_some() { pinned } else { bare }, found: Found::Nowhere };
        };
        let index = |build| self.table.index_for(build, driver, self.cuda.as_ref());
        let of = |start: String, name: &str| format!("{start} --index-url {}{name}", self.table.index_url);
        if let Some(found) = build.and_then(index) {
            return Another { command: of(pinned, &found.name), found: Found::SameVersion };
        }
        match self.table.builds.iter().find_map(index) {
            Some(found) => Another { command: of(bare, &found.name), found: Found::OtherVersion },
            None => Another { command: bare, found: Found::Nowhere },
        }
    }
}
