//! What happens in one run, drawn from its seed alone, so that it can be played again.

/// Draws.
#[derive(Debug, Clone)]
struct Draw(u64);

impl Draw {
    /// The next of a splitmix64 sequence.
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// True in `percent` of a hundred.
    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }

    /// Memory between 64 MiB and 8 GiB, in MiB.
    fn size(&mut self) -> u64 {
        64 << self.below(8)
    }
}

/// What the command leaves behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Left {
    /// A process in its own session.
    Orphan,
    /// The same without an environment.
    CleanEnvironment,
    /// The same, daemonised twice and renamed.
    Daemon,
    /// The same with its environment overwritten by a title.
    Titled,
    /// A copy of a process that ended.
    ForkedCopy,
    /// A copy of the command itself.
    ForkOfCommand,
    /// A process without its main thread.
    HalfDead,
    /// A stopped process.
    Stopped,
    /// A plain `sleep` with an exported handle.
    ExportedHandle,
    /// A process with managed memory, which no list names.
    Managed,
    /// A process that ends, whose memory comes back before the time to settle is up.
    DrainsInTime,
    /// The same, later than that.
    DrainsLate,
    /// A process that never touches the GPU.
    Server,
    /// A process that has the GPU open and no memory.
    Opener,
    /// A process that used the GPU and ends with the command.
    Worker,
    /// The same; a neighbour has mapped its memory, as PyTorch shares it, and keeps it.
    Shared,
    /// The same by raw CUDA IPC, which leaves no trace.
    SharedRaw,
    /// The same; a handle of its memory waits in a socket of somebody who has nothing to do with GPUs.
    InSocket,
}

/// A process of the command.
#[derive(Debug, Clone)]
pub(crate) struct Leftover {
    pub(crate) kind: Left,
    pub(crate) gpu: usize,
    pub(crate) mib: u64,
}

/// What a neighbour is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Being {
    /// A process with listed memory.
    Plain,
    /// A process with managed memory.
    Managed,
    /// A copy of a process that has ended.
    Ghost,
    /// A plain NVML client.
    Monitor,
}

/// What it does while the command runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Deed {
    Nothing,
    Grows,
    Shrinks,
    TouchesManaged,
    FreesManaged,
    /// It grows just when the command ends.
    GrowsAtTheEnd,
    /// Its managed memory does.
    TouchesAtTheEnd,
    Ends,
    /// It forks and ends: a ghost of its own.
    LeavesCopy,
}

/// A neighbour.
#[derive(Debug, Clone)]
pub(crate) struct Neighbour {
    pub(crate) being: Being,
    pub(crate) deed: Deed,
    pub(crate) gpu: usize,
    pub(crate) mib: u64,
    pub(crate) more_mib: u64,
    /// It starts while the command runs.
    pub(crate) late: bool,
}

/// What goes wrong with the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trouble {
    None,
    /// Every reading of memory takes so many milliseconds.
    SlowMemory(u64),
    /// Every process list takes so many milliseconds.
    SlowLists(u64),
    /// Memory of this GPU cannot be read for a while; it can before the command ends.
    FailsMeanwhile(usize),
    /// Process lists of this GPU cannot be read for a while.
    ListsFailMeanwhile(usize),
    /// This GPU is lost for good before the command ends.
    Lost(usize),
}

/// One run.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) gpus: usize,
    /// GPU and MiB that the command itself uses.
    pub(crate) command: Option<(usize, u64)>,
    pub(crate) exit_code: i32,
    pub(crate) leftovers: Vec<Leftover>,
    pub(crate) neighbours: Vec<Neighbour>,
    pub(crate) trouble: Trouble,
    pub(crate) sample_ms: u64,
    pub(crate) settle_ms: u64,
    /// Nobody waits for a look between what happens.
    pub(crate) hasty: bool,
    /// The numbers of parents of forked copies are given to innocents.
    pub(crate) reuses: bool,
}

const KINDS: [Left; 18] = [
    Left::Orphan,
    Left::CleanEnvironment,
    Left::Daemon,
    Left::Titled,
    Left::ForkedCopy,
    Left::ForkOfCommand,
    Left::HalfDead,
    Left::Stopped,
    Left::ExportedHandle,
    Left::Managed,
    Left::DrainsInTime,
    Left::DrainsLate,
    Left::Server,
    Left::Opener,
    Left::Worker,
    Left::Shared,
    Left::SharedRaw,
    Left::InSocket,
];

impl Plan {
    pub(crate) fn new(seed: u64) -> Self {
        let mut draw = Draw(seed);
        // Neighbouring seeds begin with unlike draws.
        draw.next();
        let gpus = if draw.chance(35) { 2 } else { 1 };
        let gpu = |draw: &mut Draw| draw.below(gpus as u64) as usize;
        let command = draw.chance(85).then(|| (gpu(&mut draw), draw.size()));
        let leftovers = (0..draw.of(&[0, 0, 0, 1, 1, 1, 2, 2]))
            .map(|_| Leftover { kind: draw.of(&KINDS), gpu: gpu(&mut draw), mib: draw.size() })
            .filter(|left| left.kind != Left::ForkOfCommand || command.is_some())
            .collect();
        let neighbours = (0..draw.of(&[0, 0, 1, 1, 2, 3])).map(|_| neighbour(&mut draw, gpus as u64)).collect();
        let lost = gpu(&mut draw);
        let trouble = match draw.below(20) {
            0..12 => Trouble::None,
            12 | 13 => Trouble::SlowMemory(draw.of(&[2, 10, 30])),
            14 | 15 => Trouble::SlowLists(draw.of(&[2, 10, 30])),
            16 | 17 => Trouble::FailsMeanwhile(lost),
            18 => Trouble::ListsFailMeanwhile(lost),
            _ => Trouble::Lost(lost),
        };
        Self {
            gpus,
            command,
            exit_code: if draw.chance(15) { 3 } else { 0 },
            leftovers,
            neighbours,
            trouble,
            sample_ms: draw.of(&[10, 20, 50, 100]),
            settle_ms: draw.of(&[400, 600, 1000]),
            hasty: draw.chance(15),
            reuses: draw.chance(25),
        }
    }
}

fn neighbour(draw: &mut Draw, gpus: u64) -> Neighbour {
    let being = draw.of(&[Being::Plain, Being::Plain, Being::Managed, Being::Ghost, Being::Monitor]);
    let deed = match being {
        Being::Plain => draw.of(&[
            Deed::Nothing,
            Deed::Grows,
            Deed::Shrinks,
            Deed::TouchesManaged,
            Deed::GrowsAtTheEnd,
            Deed::TouchesAtTheEnd,
            Deed::Ends,
            Deed::LeavesCopy,
        ]),
        Being::Managed => draw.of(&[Deed::Nothing, Deed::Grows, Deed::TouchesManaged, Deed::FreesManaged, Deed::Ends]),
        Being::Ghost => draw.of(&[Deed::Nothing, Deed::Ends]),
        Being::Monitor => Deed::Nothing,
    };
    Neighbour {
        being,
        deed,
        gpu: draw.below(gpus) as usize,
        mib: draw.size(),
        more_mib: draw.size(),
        late: draw.chance(40),
    }
}
