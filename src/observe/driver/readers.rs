//! Who reads the devices. With one device the caller does; with several, threads that can be left behind, so that a
//! GPU whose driver call hangs becomes a gap of that GPU while the others answer.
//!
//! The cost of a look does not grow with it: one thread, which lives as long as the helper, reads all devices one after
//! the other and wakes the caller once. Only when it gets stuck do others take over what it has not begun. A device that
//! hangs is not asked again until its call has come back, so at most one thread a device is ever lost.

use super::{
    Extras,
    calls::{self, done},
    slot::Slot,
};
use crate::model::{DeviceLook, Trouble, Uuid};
use std::{
    collections::VecDeque,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        mpsc::{self, Sender},
    },
    thread,
    time::{Duration, Instant},
};

/// Between two questions whether a device that hangs has come back, when there is no other to read.
const PAUSE: Duration = Duration::from_millis(20);

/// All devices.
pub(super) struct Readers {
    places: Vec<Place>,
    /// The thread that reads; `None` before the first look and after it was left behind.
    reader: Option<Sender<Arc<Batch>>>,
    /// Looks of which somebody has not come back.
    late: Vec<Arc<Batch>>,
    /// The first look touches every GPU for the first time; later ones take microseconds.
    looked: bool,
}

/// Where a slot is.
enum Place {
    Here(Box<Slot>),
    /// With a thread; once that is known to hang, what is said of the device meanwhile.
    Away(Uuid, Option<DeviceLook>),
}

/// The devices of one look.
#[derive(Default)]
struct Batch {
    state: Mutex<State>,
    news: Condvar,
}

#[derive(Default)]
struct State {
    /// Not begun.
    waiting: VecDeque<(usize, Box<Slot>)>,
    done: Vec<(usize, Box<Slot>, DeviceLook)>,
    /// How many there are until the caller wants to be woken.
    wanted: usize,
}

impl Batch {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads what nobody has begun, one after the other.
    fn work(&self) {
        loop {
            let Some((place, mut slot)) = self.lock().waiting.pop_front() else { break };
            let look = slot.look();
            let mut state = self.lock();
            state.done.push((place, slot, look));
            if state.done.len() >= state.wanted {
                self.news.notify_one();
            }
        }
        done();
    }

    /// Waits until `wanted` devices are read or the time is over (`None`: has no end); how many are.
    fn wait(&self, wanted: usize, until: Option<Instant>) -> usize {
        let mut state = self.lock();
        state.wanted = wanted;
        while state.done.len() < wanted {
            state = match until.map(|until| until.saturating_duration_since(Instant::now())) {
                None => self.news.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(Duration::ZERO) => break,
                Some(left) => self.news.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0,
            };
        }
        state.done.len()
    }
}

/// One more thread for what is waiting.
fn hand(batch: &Arc<Batch>) {
    let ours = Arc::clone(batch);
    if thread::Builder::new().spawn(move || ours.work()).is_err() {
        // No thread could be had: this one does it.
        batch.work();
    }
}

impl Readers {
    pub(super) fn new(slots: Vec<Slot>) -> Self {
        let places = slots.into_iter().map(|slot| Place::Here(Box::new(slot))).collect();
        Self { places, reader: None, late: Vec::new(), looked: false }
    }

    /// One look at these devices (empty: all). A device that has not answered after `patience` is a gap, if another has;
    /// while none has, this waits on, because then the driver as a whole does not answer.
    pub(super) fn look(&mut self, devices: &[Uuid], extras: Extras, patience: Duration) -> Vec<DeviceLook> {
        self.take_back();
        for place in &mut self.places {
            if let Place::Here(slot) = place {
                slot.extras = extras;
            }
        }
        let wanted: Vec<usize> = (0..self.places.len())
            .filter(|n| devices.is_empty() || self.uuid(*n).is_some_and(|uuid| devices.contains(uuid)))
            .collect();
        let mut looks: Vec<Option<DeviceLook>> = wanted.iter().map(|_| None).collect();
        let mut here = self.here(&wanted);
        while here.is_empty() && !wanted.is_empty() {
            thread::sleep(PAUSE);
            self.take_back();
            here = self.here(&wanted);
        }
        if let [only] = here[..] {
            if let Some(Place::Here(slot)) = self.places.get_mut(only) {
                set(&mut looks, &wanted, only, slot.look());
            }
        } else if !here.is_empty() {
            for (place, look) in self.together(&here, patience) {
                set(&mut looks, &wanted, place, look);
            }
        }
        self.looked = true;
        let hanging = |place: &usize| match self.places.get(*place) {
            Some(Place::Away(_, said)) => said.clone(),
            _ => None,
        };
        wanted.iter().zip(looks).filter_map(|(place, look)| look.or_else(|| hanging(place))).collect()
    }

    /// The devices of which no call hangs.
    pub(super) fn at_hand(&self) -> impl Iterator<Item = &Slot> {
        self.places.iter().filter_map(|place| match place {
            Place::Here(slot) => Some(slot.as_ref()),
            Place::Away(..) => None,
        })
    }

    fn uuid(&self, place: usize) -> Option<&Uuid> {
        match self.places.get(place)? {
            Place::Here(slot) => Some(&slot.identity.uuid),
            Place::Away(uuid, _) => Some(uuid),
        }
    }

    fn here(&self, wanted: &[usize]) -> Vec<usize> {
        wanted.iter().copied().filter(|n| matches!(self.places.get(*n), Some(Place::Here(_)))).collect()
    }

    /// Reads several devices.
    fn together(&mut self, places: &[usize], patience: Duration) -> Vec<(usize, DeviceLook)> {
        let start = Instant::now();
        let batch = Arc::new(Batch::default());
        let mut labels = Vec::new();
        {
            let mut state = batch.lock();
            // Nobody is woken before somebody waits for a number.
            state.wanted = usize::MAX;
            for place in places {
                let Some(there) = self.places.get_mut(*place) else { continue };
                let Place::Here(slot) = &*there else { continue };
                let away = Place::Away(slot.identity.uuid.clone(), None);
                labels.push((*place, slot.identity.index, slot.unread("")));
                if let Place::Here(slot) = std::mem::replace(there, away) {
                    state.waiting.push_back((*place, slot));
                }
            }
        }
        let all = labels.len();
        if self.looked {
            self.give(&batch);
        } else {
            (0..all).for_each(|_| hand(&batch));
        }
        if batch.wait(all, Some(start + patience / 2)) < all {
            // The reader hangs. Whatever it has not begun gets a thread of its own.
            self.reader = None;
            let waiting = batch.lock().waiting.len();
            (0..waiting).for_each(|_| hand(&batch));
            if batch.wait(all, Some(start + patience)) == 0 {
                batch.wait(1, None);
            }
        }
        let read = self.put_back(&batch);
        for (place, index, mut unread) in labels {
            if let Some(Place::Away(_, said)) = self.places.get_mut(place) {
                for gap in &mut unread.gaps {
                    gap.reason =
                        format!("reading it: {}; it is left out until it does", calls::no_answer(index, patience));
                    gap.trouble = Some(Trouble::Hanging);
                }
                *said = Some(unread);
            }
        }
        if read.len() < all {
            self.late.push(batch);
        }
        read
    }

    /// Gives a look to the thread that reads.
    fn give(&mut self, batch: &Arc<Batch>) {
        let gone = match &self.reader {
            Some(reader) => reader.send(Arc::clone(batch)).is_err(),
            None => true,
        };
        if !gone {
            return;
        }
        let (give, batches) = mpsc::channel::<Arc<Batch>>();
        let started = thread::Builder::new().spawn(move || batches.into_iter().for_each(|batch| batch.work()));
        if started.is_ok() && give.send(Arc::clone(batch)).is_ok() {
            self.reader = Some(give);
        } else {
            hand(batch);
        }
    }

    /// Slots whose call has come back after all. What they read is old by now.
    fn take_back(&mut self) {
        for batch in std::mem::take(&mut self.late) {
            self.put_back(&batch);
            // A thread that still reads has its part of it.
            if Arc::strong_count(&batch) > 1 {
                self.late.push(batch);
            } else {
                self.put_back(&batch);
            }
        }
    }

    fn put_back(&mut self, batch: &Batch) -> Vec<(usize, DeviceLook)> {
        let done = std::mem::take(&mut batch.lock().done);
        let mut looks = Vec::with_capacity(done.len());
        for (place, slot, look) in done {
            if let Some(there) = self.places.get_mut(place) {
                *there = Place::Here(slot);
            }
            looks.push((place, look));
        }
        looks
    }
}

fn set(looks: &mut [Option<DeviceLook>], wanted: &[usize], place: usize, look: DeviceLook) {
    if let Some(n) = wanted.iter().position(|w| *w == place)
        && let Some(there) = looks.get_mut(n)
    {
        *there = Some(look);
    }
}
