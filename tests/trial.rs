//! A randomised trial: runs with leftovers of all kinds, neighbours, delays and failing calls on the fake driver, with
//! real processes, against an oracle that knows the truth because it started them all.
//!
//! ```text
//! cargo test --test trial                                             a small number of runs, always the same
//! TRIAL_RUNS=1000 cargo test --test trial -- --nocapture              the full trial
//! TRIAL_SEED=clock cargo test --test trial                            other runs every time; the seed is printed
//! TRIAL_SEED=4711 TRIAL_RUNS=1 cargo test --test trial                one run again
//! TRIAL_JOBS=4 …                                                      so many at a time (2)
//! ```
//!
//! What is demanded of each run: no wrong `clean`, no wrong `residue`, `inconclusive` only where the oracle hid the
//! evidence, what is charged at least and at most on the right sides of the truth, every leftover that holds memory
//! named with its cause, and no advice to end a neighbour.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test says what broke by breaking")]

#[path = "trial/oracle.rs"]
mod oracle;
#[path = "trial/plan.rs"]
mod plan;
#[path = "trial/play.rs"]
mod play;
mod support;

use plan::Plan;
use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

/// Runs where nobody asks for more.
const RUNS: u64 = 40;
/// The seed of the first run; the next one has the next number.
const SEED: u64 = 20_261_130;

fn asked(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|text| !text.is_empty())
}

fn number(name: &str, otherwise: u64) -> u64 {
    asked(name).map_or(otherwise, |text| text.parse().unwrap_or_else(|_| panic!("{name} is a number, not {text}")))
}

fn say(text: &str) {
    let _ = std::io::Write::write_all(&mut std::io::stdout(), format!("{text}\n").as_bytes());
}

/// One run; the word for what came out.
fn run(seed: u64) -> Result<String, String> {
    let plan = Plan::new(seed);
    let played = catch_unwind(AssertUnwindSafe(|| play::play(&plan)));
    let complaint = |what: &str| format!("{what}\nplan: {plan:#?}");
    match played {
        Ok(played) => oracle::judge(&plan, &played)
            .map_err(|wrong| complaint(&format!("{wrong}\nreport: {:#}\nstderr: {}", played.report, played.stderr))),
        Err(panicked) => {
            let text = panicked.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panicked.downcast_ref::<&str>().map(|t| (*t).to_owned()));
            Err(complaint(&format!("it could not be played: {}", text.unwrap_or_default())))
        }
    }
}

#[test]
fn verdicts_follow_the_truth() {
    let seed = match asked("TRIAL_SEED").as_deref() {
        Some("clock") => u64::from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as u32),
        _ => number("TRIAL_SEED", SEED),
    };
    let (runs, jobs) = (number("TRIAL_RUNS", RUNS), number("TRIAL_JOBS", 2));
    say(&format!("trial: {runs} runs from TRIAL_SEED={seed}"));
    let next = AtomicU64::new(0);
    let counts: Mutex<BTreeMap<String, u64>> = Mutex::default();
    let failed: Mutex<Vec<u64>> = Mutex::default();
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n >= runs {
                        return;
                    }
                    if n > 0 && n.is_multiple_of(100) {
                        say(&format!("{n} runs have begun, {} went wrong", failed.lock().unwrap().len()));
                    }
                    let seed = seed.wrapping_add(n);
                    match run(seed) {
                        Ok(word) => *counts.lock().unwrap().entry(word).or_default() += 1,
                        Err(wrong) => {
                            say(&format!(
                                "\n=== wrong with seed {seed}; again with:\n    TRIAL_SEED={seed} TRIAL_RUNS=1 cargo test --test \
                                 trial\n{wrong}"
                            ));
                            failed.lock().unwrap().push(seed);
                        }
                    }
                }
            });
        }
    });
    for (word, count) in counts.into_inner().unwrap() {
        say(&format!("{count:5} {word}"));
    }
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "{} of {runs} runs went wrong, with these seeds: {failed:?}", failed.len());
}
