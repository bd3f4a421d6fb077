//! The client's promises, with shell scripts in place of the helper: one answer for one request, in time, whatever the
//! helper does.

use super::*;
use crate::model::{DeviceLook, DriverInfo, DriverSource, Look};
use crate::observe::driver::{Inventory, Placement};
use std::{fs, os::unix::fs::PermissionsExt, path::PathBuf, sync::mpsc::Receiver};

/// Longer than anything here takes: reaching it is a failure.
const PATIENCE: Duration = Duration::from_secs(20);
const LIMIT: Duration = Duration::from_millis(400);

/// A script that plays the helper, and the client that asks it.
struct Stage {
    dir: tempfile::TempDir,
    client: Option<Client>,
    messages: Receiver<Message>,
}

/// Words that every script can use: `next` reads a request and sets `id`; `opened`, `look NAME` answer it; `$starts`
/// says how many helpers were started, this one included.
fn script(body: &str) -> String {
    let driver = DriverInfo {
        source: DriverSource::Nvml,
        driver_version: None,
        nvml_version: None,
        cuda_version: None,
        library: None,
        interposed: None,
    };
    let opened = Say::Opened(Ok(Inventory { driver, devices: Vec::new(), gaps: Vec::new() }));
    let device = |name: &str| DeviceLook {
        uuid: Uuid(name.into()),
        memory: None,
        entries: None,
        list_api: None,
        torn: crate::model::Bytes::ZERO,
        utilization_percent: None,
        bar1: None,
        gaps: Vec::new(),
    };
    let look = Say::Look(Ok(Look { at_ms: 0, devices: vec![device("NAME")] }));
    let json = |say: &Say| serde_json::to_string(say).unwrap();
    format!(
        r#"#!/bin/sh
cd "${{0%/*}}"
echo x >> starts; starts=$(($(wc -l < starts)))
next() {{ IFS= read -r line || exit 0; id=${{line#*:}}; id=${{id%%,*}}; }}
say() {{ printf '{{"id":%s,"say":%s}}\n' "$id" "$1"; }}
opened() {{ say '{opened}'; }}
look() {{ say '{look_before}'"$1"'{look_after}'; }}
wait_for() {{ while [ ! -e "$1" ]; do sleep 0.01; done; }}
{body}
"#,
        opened = json(&opened),
        look_before = json(&look).split_once("NAME").unwrap().0,
        look_after = json(&look).split_once("NAME").unwrap().1,
    )
}

impl Stage {
    fn new(body: &str) -> Self {
        Self::with_limits(body, PATIENCE, LIMIT)
    }

    fn with_limits(body: &str, open_timeout: Duration, look_timeout: Duration) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("helper");
        fs::write(&file, script(body)).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        let options = Options {
            source: Source::Nvml { library: None },
            placement: Placement::Child,
            open_timeout,
            look_timeout,
            events: false,
            procfs: "/proc".into(),
        };
        let started = Instant::now();
        loop {
            let (tell, messages) = mpsc::channel();
            let deliver = move |message| {
                let _ = tell.send(message);
            };
            match Client::start_with(&file, &options, deliver) {
                Ok(client) => return Self { dir, client: Some(client), messages },
                // Another test's fork still has the script open for writing.
                Err(e) if started.elapsed() < PATIENCE && format!("{e:#}").contains("busy") => {}
                Err(e) => panic!("{e:#}"),
            }
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn starts(&self) -> usize {
        fs::read_to_string(self.file("starts")).map_or(0, |text| text.lines().count())
    }

    fn message(&self) -> Message {
        self.messages.recv_timeout(PATIENCE).expect("an answer")
    }

    fn opened(&self) -> Result<Inventory, Failure> {
        match self.message() {
            Message::Opened(result) => result,
            other => panic!("{other:?}"),
        }
    }

    /// Asks for a look; the name of the device that it tells.
    fn look(&self) -> Result<String, Failure> {
        self.client.as_ref().unwrap().request_look(&[], Extras::default());
        self.answer()
    }

    fn answer(&self) -> Result<String, Failure> {
        match self.message() {
            Message::Look(result) => result.map(|look| look.devices[0].uuid.0.clone()),
            other => panic!("{other:?}"),
        }
    }

    fn helper(&self) -> ProcId {
        *self.client.as_ref().unwrap().tool_processes().last().expect("a helper")
    }
}

fn until(what: &str, condition: impl Fn() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < PATIENCE, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn is_gone(id: ProcId) -> bool {
    // A zombie still has its directory: gone means reaped.
    !Path::new(&format!("/proc/{}", id.pid)).exists()
}

#[test]
fn answers_come_in_order_and_the_helper_is_reaped() {
    let mut stage = Stage::new("next; opened; while :; do next; look \"$id\"; done");
    assert!(stage.opened().is_ok());
    for _ in 0..3 {
        stage.client.as_ref().unwrap().request_look(&[], Extras::default());
    }
    assert_eq!([stage.answer(), stage.answer(), stage.answer()], ["2", "3", "4"].map(|s| Ok(s.into())));
    let helper = stage.helper();
    assert!(!is_gone(helper));
    stage.client = None;
    until("the helper is reaped", || is_gone(helper));
}

#[test]
fn a_look_may_be_asked_for_before_the_driver_is_open() {
    let stage = Stage::with_limits("next; wait_for go; opened; next; look a", PATIENCE, PATIENCE);
    stage.client.as_ref().unwrap().request_look(&[], Extras::default());
    fs::write(stage.file("go"), "").unwrap();
    assert!(stage.opened().is_ok());
    assert_eq!(stage.answer(), Ok("a".into()));
}

#[test]
fn a_hanging_look_ends_at_its_deadline_and_names_the_call() {
    let stage = Stage::new(
        "next; opened; next; if [ $starts = 1 ]; then printf nv:compute:3 > /proc/$$/comm; next; fi; look second",
    );
    assert!(stage.opened().is_ok());
    let helper = stage.helper();
    let failure = stage.look().unwrap_err();
    assert_eq!(failure.kind, FailureKind::Timeout);
    assert!(failure.message.contains("nvmlDeviceGetComputeRunningProcesses on GPU 3"), "{failure}");
    assert!(failure.message.contains(&helper.pid.to_string()), "{failure}");
    until("the stuck helper is killed and reaped", || is_gone(helper));
    // The replacement may be slow to start on a busy machine; each try still gets exactly one answer.
    let answer = (0..100).find_map(|_| stage.look().ok());
    assert_eq!(answer.as_deref(), Some("second"));
    assert_eq!(stage.starts(), 2);
    assert_eq!(stage.client.as_ref().unwrap().tool_processes().len(), 2, "both are known as ours");
}

#[test]
fn a_replacement_that_hangs_too_is_the_last_one_for_a_while() {
    let stage = Stage::new("next; opened; next; echo x >> looks; next");
    assert!(stage.opened().is_ok());
    let looks = || fs::read_to_string(stage.file("looks")).map_or(0, |text| text.lines().count());
    until("two helpers hang", || stage.look().unwrap_err().kind == FailureKind::Timeout && looks() == 2);
    let starts = stage.starts();
    let before = Instant::now();
    for _ in 0..10 {
        assert_eq!(stage.look().unwrap_err().kind, FailureKind::Timeout);
    }
    assert!(before.elapsed() < LIMIT * 5, "answered without waiting: {:?}", before.elapsed());
    assert_eq!(stage.starts(), starts, "no further helper");
}

#[test]
fn a_late_answer_is_dropped() {
    let stage = Stage::new(
        "next; opened; next
        if [ $starts = 1 ]; then
            (wait_for go; look late; : > late_said) &
            next
        fi
        look in_time; next; look again",
    );
    assert!(stage.opened().is_ok());
    assert_eq!(stage.look().unwrap_err().kind, FailureKind::Timeout);
    fs::write(stage.file("go"), "").unwrap();
    until("the late answer was given", || stage.file("late_said").exists());
    let answers: Vec<_> = (0..100).filter_map(|_| stage.look().ok()).take(2).collect();
    assert_eq!(answers, ["in_time", "again"]);
}

#[test]
fn a_helper_that_dies_is_replaced() {
    let stage =
        Stage::with_limits("next; opened; next; if [ $starts -lt 3 ]; then exit 7; fi; look third", PATIENCE, PATIENCE);
    assert!(stage.opened().is_ok());
    for _ in 0..2 {
        let failure = stage.look().unwrap_err();
        assert_eq!(failure.kind, FailureKind::HelperDied);
        assert!(failure.message.contains("ended with code 7"), "{failure}");
    }
    until("the third one is started", || stage.look() == Ok("third".into()));
}

#[test]
fn a_death_between_two_looks_costs_no_answer() {
    let stage =
        Stage::with_limits("next; opened; if [ $starts = 1 ]; then exit 0; fi; next; look b", PATIENCE, PATIENCE);
    assert!(stage.opened().is_ok());
    let helper = stage.helper();
    until("it is gone", || is_gone(helper));
    // Whether the client heard of the death before the request is a matter of microseconds.
    let answer = (0..2).find_map(|_| stage.look().ok());
    assert_eq!(answer.as_deref(), Some("b"));
}

#[test]
fn dying_again_and_again_is_tried_ever_more_rarely_and_ends_with_the_trouble() {
    let stage = Stage::with_limits(
        "next; opened; next; if [ -e well ]; then look well; next; else exit 1; fi",
        PATIENCE,
        PATIENCE,
    );
    assert!(stage.opened().is_ok());
    let began = Instant::now();
    let mut failed = 0;
    while began.elapsed() < Duration::from_millis(700) {
        assert_eq!(stage.look().unwrap_err().kind, FailureKind::HelperDied);
        failed += 1;
    }
    // Tried at 0, 0, 50, 150, 350 ms and perhaps at 750.
    assert!((2..=6).contains(&stage.starts()), "{} helpers", stage.starts());
    assert!(failed > stage.starts(), "between the tries every request is answered at once");
    fs::write(stage.file("well"), "").unwrap();
    until("a helper works", || stage.look() == Ok("well".into()));
}

#[test]
fn whoever_wants_a_fresh_try_need_not_wait_for_it() {
    let stage = Stage::new("next; opened; next; if [ -e well ]; then look well; fi; next");
    assert!(stage.opened().is_ok());
    until("two helpers hang", || {
        let _ = stage.look();
        stage.starts() == 2
    });
    // The second one hangs too, and then nobody is asked for a long time.
    until("nobody is asked", || {
        let began = Instant::now();
        stage.look().is_err() && began.elapsed() < LIMIT / 4
    });
    fs::write(stage.file("well"), "").unwrap();
    stage.client.as_ref().unwrap().try_afresh();
    let answer = (0..100).find_map(|_| stage.look().ok());
    assert_eq!((answer.as_deref(), stage.starts()), (Some("well"), 3));
}

#[test]
fn floods_and_nonsense_end_the_helper() {
    for body in ["next; opened; next; while :; do opened; done", "next; opened; next; echo nonsense; next"] {
        let stage = Stage::with_limits(body, PATIENCE, PATIENCE);
        assert!(stage.opened().is_ok());
        let helper = stage.helper();
        assert_eq!(stage.look().unwrap_err().kind, FailureKind::HelperDied, "{body}");
        until("it is reaped", || is_gone(helper));
    }
}

#[test]
fn opening_has_its_own_deadline() {
    let stage = Stage::with_limits("next; printf nv:init > /proc/$$/comm; next", Duration::from_secs(2), PATIENCE);
    let failure = stage.opened().unwrap_err();
    assert_eq!(failure.kind, FailureKind::Timeout);
    assert!(failure.message.contains("nvmlInit_v2 did not come back within 2s"), "{failure}");
    assert_eq!(stage.look().unwrap_err(), failure, "and every look says so");
    assert_eq!(stage.starts(), 1);
}

#[test]
fn a_driver_that_does_not_open_says_why() {
    let refusal = serde_json::to_string(&Say::Opened(Err(Failure::new(FailureKind::NoDriver, "none").hint("load it"))));
    let stage = Stage::new(&format!("next; say '{}'; next", refusal.unwrap()));
    let failure = stage.opened().unwrap_err();
    assert_eq!(failure, Failure::new(FailureKind::NoDriver, "none").hint("load it"));
    assert_eq!(stage.look().unwrap_err(), failure);
}

#[test]
fn dropping_waits_for_nothing_and_leaves_nothing() {
    let mut stage = Stage::with_limits("next; opened; next; : > asked; next", PATIENCE, PATIENCE);
    assert!(stage.opened().is_ok());
    stage.client.as_ref().unwrap().request_look(&[], Extras::default());
    until("the helper hangs", || stage.file("asked").exists());
    let helper = stage.helper();
    let before = Instant::now();
    stage.client = None;
    assert!(before.elapsed() < Duration::from_secs(1));
    until("it is killed and reaped", || is_gone(helper));
}

#[test]
fn a_binary_that_is_not_there_is_an_error_at_once() {
    let options = Options {
        source: Source::Nvml { library: None },
        placement: Placement::Child,
        open_timeout: PATIENCE,
        look_timeout: PATIENCE,
        events: false,
        procfs: "/proc".into(),
    };
    assert!(Client::start_with(Path::new("/no/such/binary"), &options, |_| {}).is_err());
}
