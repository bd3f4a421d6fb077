//! Draws cases and plays them, in lanes: `SWEEP_RUNS` says how many (`all` before a release: every one), `SWEEP_SEED` which,
//! and `SWEEP_PART=2/4` plays the second of four equal parts of them, for machines that give little time at once.

use crate::{
    deeds::{Deed, World},
    support::Finished,
};
use std::{
    collections::BTreeMap,
    fmt::Debug,
    hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher},
    num::NonZero,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

/// So many of all: one anywhere in each of as many stretches of the same length. (Equal steps would meet a list that repeats
/// itself at the same place again and again.)
fn drawn<C: Clone>(all: &[C], otherwise: usize) -> Vec<C> {
    let asked = |name| std::env::var(name).ok();
    let number = |text: Option<String>, otherwise| text.map_or(otherwise, |text| text.parse().unwrap());
    let runs = asked("SWEEP_RUNS");
    let drawn: Vec<C> = if runs.as_deref() == Some("all") {
        all.to_vec()
    } else {
        let (runs, seed) = (number(runs, otherwise).min(all.len()), number(asked("SWEEP_SEED"), 1));
        let stretch = |n| n * all.len() / runs..(n + 1) * all.len() / runs;
        let anywhere = |n| BuildHasherDefault::<DefaultHasher>::default().hash_one((seed, n));
        let place = |n| stretch(n).start + (anywhere(n) % stretch(n).len() as u64) as usize;
        (0..runs).map(|n| all[place(n)].clone()).collect()
    };
    let part = asked("SWEEP_PART").unwrap_or_else(|| "1/1".into());
    let (which, of) = part.split_once('/').unwrap_or_else(|| panic!("SWEEP_PART is as 2/4, and not as {part}"));
    let (which, of): (usize, usize) = (which.parse().unwrap(), of.parse().unwrap());
    assert!(0 < which && which <= of, "there is no part {part}");
    // Every so many, as some kinds of cases take longer than others.
    let mine: Vec<C> = drawn.iter().skip(which - 1).step_by(of).cloned().collect();
    println!("{} cases in all, {} of them drawn, {} of these in part {part}", all.len(), drawn.len(), mine.len());
    mine
}

/// Plays so many cases where nobody asks for more; `play` says how one ended and what was wrong with that.
pub(crate) fn play<C: Clone + Debug + Send + Sync>(
    all: &[C],
    otherwise: usize,
    deed_of: impl Fn(&C) -> Deed + Sync,
    play: impl Fn(&World, &C) -> (Finished, Option<String>) + Sync,
) -> BTreeMap<(Deed, i32), usize> {
    let cases = drawn(all, otherwise);
    let (next, bad) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let counts: Mutex<BTreeMap<(Deed, i32), usize>> = Mutex::default();
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(2, NonZero::get) * 2 {
            scope.spawn(|| {
                // What nobody changes serves for many.
                let mut kept: Vec<(Deed, World)> = Vec::new();
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let deed = deed_of(case);
                    let place = kept.iter().position(|(kept, _)| *kept == deed);
                    let world = place.map_or_else(|| World::new(deed), |place| kept.swap_remove(place).1);
                    // It panics where it does not end.
                    let played = catch_unwind(AssertUnwindSafe(|| play(&world, case)));
                    let code = played.as_ref().ok().and_then(|(end, _)| end.code).unwrap_or(-1);
                    *counts.lock().unwrap().entry((deed, code)).or_default() += 1;
                    let told = match played {
                        Ok((end, wrong)) => wrong.map(|wrong| format!("{wrong}\n{}\n{}", end.stdout, end.stderr)),
                        Err(why) => Some(format!("it could not be played: {:?}", why.downcast_ref::<String>())),
                    };
                    match told {
                        Some(told) => {
                            println!("{case:?}: {told}");
                            bad.lock().unwrap().push(format!("{case:?}: {told}"));
                        }
                        None if !deed.changes_the_world() => kept.push((deed, world)),
                        None => {}
                    }
                }
            });
        }
    });
    let (bad, counts) = (bad.into_inner().unwrap(), counts.into_inner().unwrap());
    println!("{} cases; how often each deed ended with which code: {counts:?}", cases.len());
    assert!(bad.is_empty(), "{} of {} went wrong:\n{}", bad.len(), cases.len(), bad[..bad.len().min(5)].join("\n\n"));
    counts
}
