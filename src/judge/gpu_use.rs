//! Whether the command used a GPU at all. A run whose GPU tests were all skipped leaves nothing either, and who reads
//! "clean" has to be able to tell the two apart.

use super::{cause::NOTICEABLE, device::Judged, lineage, run::Run, scene::Scene};
use crate::model::{Advice, Bytes, Lineage};

/// Looks further apart than this on average may have missed a whole use.
const SEEN_WITHIN_MS: u64 = 500;

/// What the looks say of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GpuUse {
    Seen,
    None,
    /// Nothing was seen of a command that was over before there was much to see.
    TooShort,
    /// No command, or a use that may have gone unseen.
    Unknown,
}

impl GpuUse {
    /// As a report has it.
    pub(super) const fn known(self) -> Option<bool> {
        match self {
            Self::Seen => Some(true),
            Self::None => Some(false),
            Self::TooShort | Self::Unknown => None,
        }
    }
}

pub(super) fn gpu_use(run: &Run<'_>, scene: &Scene<'_>, judged: &[Judged]) -> GpuUse {
    let Some(command) = run.launch.command.as_ref() else { return GpuUse::Unknown };
    let peak = judged.iter().any(|j| j.report.command_peak_bytes.is_some_and(|peak| peak.0 > 0));
    let open = scene.near().filter(|p| p.can_hold_memory() == Some(true)).any(|p| scene.is_of_the_run(run, p));
    if peak || run.own_was_listed || open {
        return GpuUse::Seen;
    }
    // A daemon may have done it: of who came meanwhile nobody knows for whom.
    let newcomer = run.trace.seen.iter().any(|s| s.listed && run.lineage(s.into()) == Lineage::Unknown);
    let sees_all = !run.after.observer.out_of_sight() && !lineage::is_client(command.argv.words(), "");
    let ran = command.ended_ms.map(|end| end.saturating_sub(command.started_ms));
    let watched = judged.iter().all(|j| {
        let trace = run.trace.device(&j.report.uuid);
        let looks = trace.map_or(0, |t| t.looks);
        let often = ran.is_some_and(|ran| ran <= looks.saturating_mul(SEEN_WITHIN_MS))
            && run.too_few_looks(&j.report.uuid).is_none();
        let before = j.report.used_before_bytes;
        let rose = before.zip(j.report.peak_bytes).map(|(before, peak)| peak.saturating_sub(before));
        let listed = scene.snapshot.device(&j.report.uuid).is_some_and(|d| d.look.entries.is_some());
        let quiet = rose.is_some_and(|rose: Bytes| rose <= NOTICEABLE);
        // Whoever was listed in one look and gone before it could be named may have been the command's.
        let named: Bytes = trace.map(|t| t.process_peaks.iter().map(|(_, peak)| *peak).sum()).unwrap_or_default();
        let explained = rose.is_none_or(|rose: Bytes| rose <= NOTICEABLE + named);
        // A parent of MIG instances is judged by them.
        scene.snapshot.device(&j.report.uuid).is_some_and(|d| d.identity.mig_parent)
            || (often && listed && explained && (sees_all || quiet))
    });
    if !watched || newcomer || judged.is_empty() {
        return GpuUse::Unknown;
    }
    let too_short = judged.iter().any(|j| run.is_too_short_to_see(&j.report.uuid));
    if too_short { GpuUse::TooShort } else { GpuUse::None }
}

/// What to look at where a GPU should have been used.
pub(super) fn advice() -> Advice {
    super::advice::step(
        Some("gpuresid doctor".into()),
        "see whether programs can use the GPUs here (driver, permissions, CUDA_VISIBLE_DEVICES, PyTorch): tests that find \
         no GPU are often skipped without a word",
        "nobody",
    )
}
