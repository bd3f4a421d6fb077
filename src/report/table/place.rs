//! Where a holder belongs, in the few words of a column: pod, job, container, unit, the process that started it, session.

use crate::model::Holder;

/// The name under which it is found there: who knows nothing of the process knows that.
pub(super) fn place(holder: &Holder) -> Option<String> {
    let place = holder.place.as_ref();
    let pod = place.and_then(|place| place.pod_uid.as_ref()).map(|uid| format!("pod {}", start(uid)));
    let job = || Some(format!("job {}", place?.slurm.as_ref()?.job));
    let container = || Some(format!("container {}", place?.container.as_ref()?.short()));
    let unit = || Some(place?.unit.as_ref()?.name.clone());
    let parent = || Some(format!("below {}", holder.launcher.as_ref()?));
    let session = || Some(format!("session {}", session(holder.cgroup.as_deref()?)?));
    pod.or_else(job).or_else(container).or_else(unit).or_else(parent).or_else(session)
}

/// The part of a UID that tells one from the others of a machine; the whole stands in the evidence and in the JSON.
fn start(uid: &str) -> &str {
    uid.split('-').next().unwrap_or(uid)
}

/// The number of the login session, as `loginctl` has it.
fn session(cgroup: &str) -> Option<&str> {
    cgroup.split('/').find_map(|segment| segment.strip_prefix("session-")?.strip_suffix(".scope"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(fields: serde_json::Value) -> Holder {
        let mut holder = serde_json::json!({
            "pid": 1, "command": "x", "cause": "open_only", "lineage": "unknown", "why": [], "devices": [],
        });
        if let (Some(all), serde_json::Value::Object(more)) = (holder.as_object_mut(), fields) {
            all.extend(more);
        }
        serde_json::from_value(holder).unwrap()
    }

    #[test]
    fn where_it_belongs_is_the_name_that_finds_it() {
        let id = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
        let container = serde_json::json!({ "id": id, "runtime": "docker" });
        let slurm = serde_json::json!({ "job": "104", "step": "0", "by_environment": false });
        let unit = serde_json::json!({ "name": "triton.service", "of_user": false });
        for (fields, words) in [
            (serde_json::json!({}), None),
            (
                serde_json::json!({ "place": { "container": container, "pod_uid": "1b2c3d4e-5f60-7182-93a4-b5c6d7e8f901" } }),
                Some("pod 1b2c3d4e"),
            ),
            (serde_json::json!({ "place": { "container": container } }), Some("container 0123456789ab")),
            (serde_json::json!({ "place": { "slurm": slurm } }), Some("job 104")),
            (serde_json::json!({ "place": { "unit": unit } }), Some("triton.service")),
            (serde_json::json!({ "cgroup": "/user.slice/user-7.slice/session-3.scope" }), Some("session 3")),
            // The process that started it says more than the session of a login.
            (
                serde_json::json!({ "cgroup": "/x/session-3.scope", "launcher": "torchrun (47)" }),
                Some("below torchrun (47)"),
            ),
        ] {
            assert_eq!(place(&holder(fields)).as_deref(), words);
        }
    }

    #[test]
    fn a_login_session_has_a_number() {
        assert_eq!(session("/user.slice/user-1000.slice/session-3.scope"), Some("3"));
        assert_eq!(session("/user.slice/user-1000.slice/session-c2.scope"), Some("c2"));
        assert_eq!(session("/system.slice/session.service"), None);
    }
}
