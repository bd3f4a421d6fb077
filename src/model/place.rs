//! Where a process belongs on its machine: container, pod, batch job, service. Read from its cgroup's path and its
//! environment; it decides at which level the process can be ended for good.

use serde::{Deserialize, Serialize};

/// A container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Container {
    /// Its id, as the runtime's commands take it; a name where the runtime goes by names.
    pub id: String,
    /// `docker`, `podman`, `containerd`, `crio`, `nerdctl`, `lxc`, `nspawn`; `None`: the path does not tell.
    pub runtime: Option<String>,
}

/// A batch job of Slurm.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlurmJob {
    /// The job's number, or its SLUID where the cgroup has that (Slurm 26.05).
    pub job: String,
    /// The step: `0`, `batch`, `extern`, `interactive`.
    pub step: Option<String>,
    /// Only its environment says so; the cgroup does not.
    pub by_environment: bool,
}

/// A unit of systemd.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unit {
    /// Its name, such as `tritonserver.service`.
    pub name: String,
    /// It belongs to a user's own service manager.
    pub of_user: bool,
}

/// Where a process belongs. All fields that apply are set: a pod's process has a container too.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Its container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<Container>,
    /// UID of its Kubernetes pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_uid: Option<String>,
    /// Its batch job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slurm: Option<SlurmJob>,
    /// Its service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<Unit>,
}

impl Place {
    /// Nothing is known.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// In words: `pod 1b2c…, container 0123456789ab (containerd)`, `Slurm job 123, step 0`, `user unit app.service`.
    pub fn words(&self) -> String {
        let mut parts = Vec::new();
        if let Some(uid) = &self.pod_uid {
            parts.push(format!("Kubernetes pod {uid}"));
        }
        if let Some(c) = &self.container {
            let runtime = c.runtime.as_ref().map(|r| format!(" ({r})")).unwrap_or_default();
            parts.push(format!("container {}{runtime}", c.short()));
        }
        if let Some(s) = &self.slurm {
            let step = s.step.as_ref().map(|s| format!(", step {s}")).unwrap_or_default();
            let source = if s.by_environment { " (by its environment)" } else { "" };
            parts.push(format!("Slurm job {}{step}{source}", s.job));
        }
        if let Some(u) = &self.unit {
            parts.push(format!("{}unit {}", if u.of_user { "user " } else { "" }, u.name));
        }
        parts.join(", ")
    }
}

impl Container {
    /// The id as people know it: its first 12 characters.
    pub fn short(&self) -> &str {
        let long = self.id.len() >= 32 && self.id.bytes().all(|b| b.is_ascii_hexdigit());
        if long { self.id.get(..12).unwrap_or(&self.id) } else { &self.id }
    }
}
