//! NVML's return codes in words, and which of them mean that the driver as a whole does not answer. Codes, not an enum:
//! drivers newer than this file return numbers that it does not know.

use super::{Failure, FailureKind, library};
use crate::model::Trouble;
use nvml_wrapper::error::NvmlError;

/// A return code other than 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Code(pub(super) u32);

impl Code {
    pub(super) const NOT_SUPPORTED: Self = Self(3);
    pub(super) const NO_PERMISSION: Self = Self(4);
    pub(super) const INSUFFICIENT_SIZE: Self = Self(7);
    pub(super) const DRIVER_NOT_LOADED: Self = Self(9);
    pub(super) const LIBRARY_NOT_FOUND: Self = Self(12);
    /// Also what we say for a symbol that the library lacks: both mean "this driver does not know the call".
    pub(super) const FUNCTION_NOT_FOUND: Self = Self(13);
    pub(super) const LIB_RM_VERSION_MISMATCH: Self = Self(18);
    pub(super) const ARGUMENT_VERSION_MISMATCH: Self = Self(25);
    pub(super) const GPU_NOT_FOUND: Self = Self(28);
    pub(super) const UNKNOWN: Self = Self(999);

    /// What it says about a device that answers it instead of its memory, its processes or its handle.
    pub(super) fn trouble(self) -> Option<Trouble> {
        match self.0 {
            15 => Some(Trouble::Lost),
            16 => Some(Trouble::ResetRequired),
            999 => Some(Trouble::Failing),
            _ => None,
        }
    }

    /// The driver does not know this version of the call: an older one may do.
    pub(super) fn is_missing_call(self) -> bool {
        self == Self::FUNCTION_NOT_FOUND || self == Self::ARGUMENT_VERSION_MISMATCH
    }
}

impl std::fmt::Display for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = match self.0 {
            1 => "NVML is not initialized",
            2 => "invalid argument",
            3 => "not supported on this device",
            4 => "no permission",
            6 => "not found",
            7 => "the buffer is too small",
            8 => "the GPU's power cable is not attached",
            9 => "the NVIDIA driver is not loaded",
            10 => "the driver timed out",
            11 => "the kernel has an interrupt problem with the GPU",
            12 => "a library is missing",
            13 => "this driver does not know the call",
            14 => "the GPU's infoROM is corrupted",
            15 => "the GPU is lost: it fell off the bus or does not answer",
            16 => "the GPU must be reset before it can be used again",
            17 => "the operating system or a cgroup denied access",
            18 => "library and kernel module are of different versions",
            19 => "the GPU is in use",
            20 => "out of memory",
            21 => "no data",
            23 => "the driver is out of resources",
            25 => "the driver does not know this version of the call",
            26 => "the call is deprecated",
            27 => "the GPU is not ready",
            28 => "no GPU was found",
            29 => "the GPU is in a state that does not allow the call",
            999 => "unknown error in the driver",
            _ => "an error that this version of gpuresid does not know",
        };
        write!(f, "{text} (NVML code {})", self.0)
    }
}

impl From<&NvmlError> for Code {
    #[expect(deprecated, reason = "an old driver may still return it")]
    fn from(error: &NvmlError) -> Self {
        use NvmlError as E;
        Self(match error {
            E::Uninitialized => 1,
            E::InvalidArg => 2,
            E::NotSupported => 3,
            E::NoPermission => 4,
            E::AlreadyInitialized => 5,
            E::NotFound => 6,
            E::InsufficientSize(_) => 7,
            E::InsufficientPower => 8,
            E::DriverNotLoaded => 9,
            E::Timeout => 10,
            E::IrqIssue => 11,
            E::LibraryNotFound => 12,
            E::FunctionNotFound | E::FailedToLoadSymbol(_) => 13,
            E::CorruptedInfoROM => 14,
            E::GpuLost => 15,
            E::ResetRequired => 16,
            E::OperatingSystem => 17,
            E::LibRmVersionMismatch => 18,
            E::InUse => 19,
            E::InsufficientMemory => 20,
            E::NoData => 21,
            E::VgpuEccNotSupported => 22,
            // The wrapper names no code above 22; they arrive as numbers.
            E::UnexpectedVariant(code) => *code,
            _ => Self::UNKNOWN.0,
        })
    }
}

/// Why opening NVML failed: what we were `doing`, and the code that came back.
pub(super) fn failure(doing: &str, code: Code, library: Option<&str>) -> Failure {
    match code {
        Code::DRIVER_NOT_LOADED => library::no_driver(),
        Code::LIB_RM_VERSION_MISMATCH => library::version_mismatch(library),
        Code::NO_PERMISSION => Failure::new(FailureKind::NoPermission, format!("{doing}: {code}")).hint(
            "see who may use the device files: ls -l /dev/nvidia*\n\
             your user may have to join their group: sudo usermod -aG video $USER",
        ),
        Code::LIBRARY_NOT_FOUND => Failure::new(FailureKind::NoLibrary, format!("{doing}: {code}"))
            .hint("reinstall the driver's user-space libraries, or name the file: --nvml-lib PATH"),
        Code::FUNCTION_NOT_FOUND => Failure::new(
            FailureKind::NoLibrary,
            format!("{doing}: {} does not have the call: it is too old, or not NVML", library.unwrap_or("the library")),
        )
        .hint("name the right file: --nvml-lib PATH"),
        Code::GPU_NOT_FOUND => library::no_gpu(),
        _ => Failure::new(FailureKind::Other, format!("{doing}: {code}"))
            .hint("see what the kernel says: sudo dmesg | grep -i -e nvrm -e xid"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_become_failures() {
        let kind = |code| failure("starting NVML", Code(code), Some("libnvidia-ml.so.1")).kind;
        assert_eq!(kind(9), FailureKind::NoDriver);
        assert_eq!(kind(18), FailureKind::VersionMismatch);
        assert_eq!(kind(4), FailureKind::NoPermission);
        assert_eq!(kind(12), FailureKind::NoLibrary);
        assert_eq!(kind(13), FailureKind::NoLibrary);
        assert_eq!(kind(28), FailureKind::NoGpu);
        assert_eq!(kind(999), FailureKind::Other);
        assert_eq!(kind(77), FailureKind::Other);
    }

    #[test]
    fn every_failure_says_what_to_do() {
        for code in (1..40).chain([999]) {
            let failure = failure("starting NVML", Code(code), None);
            assert!(failure.hint.is_some(), "code {code}");
            assert!(!failure.message.is_empty());
        }
    }

    #[test]
    fn the_wrappers_errors_keep_their_number() {
        for code in (1..=40).chain([999]) {
            assert_eq!(Code::from(&NvmlError::from(code)), Code(code));
        }
        assert_eq!(Code::from(&NvmlError::FailedToLoadSymbol("x".into())), Code::FUNCTION_NOT_FOUND);
    }
}
