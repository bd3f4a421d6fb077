//! Steps of advice before they stand side by side: what ends one holder at the level that owns it may end others too, and
//! then is one step that names all of them, with what each gives back.

use crate::model::{Advice, Bytes};

/// A step for one holder that may turn out to be the step for several.
pub(super) struct Draft {
    pub(super) step: Advice,
    /// Who ends by it, beside those that the step itself names, and what each gives back.
    pub(super) ends: Vec<(u32, Bytes)>,
}

impl Draft {
    /// So many are named one by one.
    const MOST: usize = 4;

    /// Each step once, with all whom it ends.
    pub(super) fn merged(drafts: impl Iterator<Item = Self>) -> Vec<Advice> {
        let mut merged: Vec<Self> = Vec::new();
        for mut draft in drafts {
            let same = |known: &&mut Self| known.step.command.is_some() && known.step.command == draft.step.command;
            match merged.iter_mut().find(same) {
                Some(known) => known.ends.append(&mut draft.ends),
                None => merged.push(draft),
            }
        }
        merged.into_iter().map(Self::finish).collect()
    }

    fn finish(mut self) -> Advice {
        if self.ends.is_empty() {
            return self.step;
        }
        let total: Bytes = self.ends.iter().map(|(_, bytes)| *bytes).sum();
        let one = |(pid, bytes): &(u32, Bytes)| match *bytes {
            Bytes::ZERO => format!("PID {pid}"),
            bytes => format!("PID {pid} gives back {bytes}"),
        };
        let named = match self.ends.len() {
            1 => self.ends.iter().map(one).collect(),
            2..=Self::MOST => {
                format!("{}; {total} together", self.ends.iter().map(one).collect::<Vec<_>>().join(", "))
            }
            n => {
                let pids: Vec<String> = self.ends.iter().map(|(pid, _)| pid.to_string()).collect();
                format!("{n} processes give back {total}: PID {}", pids.join(", "))
            }
        };
        self.step.why.push_str(&format!(" ({named})"));
        self.step
    }
}

/// Steps that name for themselves whom they end.
pub(super) fn plain(steps: Vec<Advice>) -> Vec<Draft> {
    steps.into_iter().map(|step| Draft { step, ends: Vec::new() }).collect()
}
