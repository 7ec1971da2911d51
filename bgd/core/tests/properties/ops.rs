//! The steps of a history, as data, so that proptest can shrink it.

use bgd_shared::request::BlockMode;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

/// One step of a history. Indexes are taken modulo the number of items at that moment.
#[derive(Clone, Debug)]
pub enum Op {
    Submit {
        client: usize,
        session: Option<u8>,
        key: Option<u8>,
        env: u8,
        time_limit: Option<u16>,
        agent: Option<Patience>,
        place: StartMode,
        /// Only in the background.
        plan: Option<PlanPick>,
        /// Whether it has a readiness condition.
        ready: Option<ReadyPick>,
    },
    /// A batch in several parts.
    Many {
        client: usize,
        session: Option<u8>,
        env: u8,
        plan: Option<PlanPick>,
        jobs: Option<u32>,
        max_fails: Option<u32>,
        /// Number of tasks in each part.
        parts: Vec<usize>,
        /// Whether the parts continue a batch that was never begun.
        stray: bool,
        /// Whether the last part announces more parts that never follow.
        open: bool,
    },
    /// Pauses or continues tasks.
    Pause {
        client: usize,
        which: Which,
        paused: bool,
    },
    Hold {
        client: usize,
        which: Which,
        held: bool,
    },
    Edit {
        client: usize,
        pick: Pick,
        aimed: bool,
        group: Option<u8>,
        priority: Option<i8>,
        slots: Option<u32>,
        after: Option<Vec<(Pick, u8)>>,
        start: Option<StartPick>,
    },
    Group {
        client: usize,
        group: u8,
        change: Change,
    },
    Detach {
        client: usize,
        pick: Pick,
        aimed: bool,
        /// Whether the client is the one that shows the job.
        by_owner: bool,
        /// Whether to do it twice in a row.
        twice: bool,
    },
    /// Another program hands over a process.
    Adopt {
        client: usize,
        session: Option<u8>,
        key: Option<u8>,
        time_limit: Option<u16>,
    },
    Resume {
        client: usize,
        pick: Pick,
        aimed: bool,
        prompt: u8,
    },
    Answer {
        client: usize,
        pick: Pick,
        aimed: bool,
        /// Index of an open question; beyond those, a question that was never asked or is not open.
        question: usize,
        /// Index of an option; beyond those, a denial without one.
        option: u8,
    },
    Block {
        client: usize,
        picks: Vec<Pick>,
        timeout: Option<u16>,
        mode: BlockMode,
        ready: bool,
    },
    Cancel {
        client: usize,
        which: Which,
        signal: Option<i32>,
        grace: Option<u16>,
    },
    Clear {
        client: usize,
        which: Which,
        active_too: bool,
    },
    EndSession {
        client: usize,
        session: u8,
    },
    Own {
        client: usize,
        session: u8,
    },
    ReadInbox {
        client: usize,
        session: u8,
        after: Mark,
        wait: Option<u16>,
        limit: usize,
    },
    Acknowledge {
        client: usize,
        session: u8,
        upto: Mark,
    },
    Signal {
        client: usize,
        pick: Pick,
        signal: i32,
        tree: bool,
    },
    Retrieve {
        client: usize,
        pick: Pick,
        complete: bool,
    },
    Shutdown {
        client: usize,
        grace: Option<u16>,
        cancels: bool,
    },
    Disconnect {
        client: usize,
    },
    Configure {
        max_concurrent_tasks: usize,
        tasks: usize,
        memory: usize,
        grace: u64,
        inbox_items: usize,
        /// Limits on finished tasks: age in milliseconds, bytes of output, and number.
        history: Option<(u64, u64, usize)>,
    },
    /// Nothing may start for now, or everything may again.
    HoldStarts(bool),
    /// Advances the clock; timers fire on time, or all together at the end. The wall clock may jump, too.
    Advance {
        ms: u64,
        late: bool,
        wall_jump: i64,
    },
    /// A process does something, chosen by the roll.
    Act {
        proc: usize,
        roll: u8,
    },
    /// A task with a restart rule fails again and again.
    Relapse {
        pick: usize,
    },
    /// A fact that is late, repeated, or from another run.
    Stale {
        pick: usize,
        kind: Stale,
        fact: usize,
    },
    /// The core is serialised and read back; the copy takes over.
    Reload,
    /// Compares the lists with the model.
    List {
        session: Option<u8>,
        status: u8,
        limit: usize,
    },
}

/// How a task is ordered.
#[derive(Clone, Debug)]
pub struct PlanPick {
    pub group: Option<u8>,
    pub priority: i8,
    pub slots: u32,
    /// Each with the number of a condition.
    pub after: Vec<(Pick, u8)>,
    pub start: Option<StartPick>,
    pub hold: bool,
    pub again: Option<Repetition>,
}

/// When a task may start.
#[derive(Clone, Copy, Debug)]
pub enum StartPick {
    In(u16),
    /// Milliseconds from a time that has already passed.
    At(u16),
}

/// Whether it starts again after its end.
#[derive(Clone, Copy, Debug)]
pub enum Repetition {
    Retry { times: u8, delay: u16, codes: bool, signal: bool },
    OnFailure,
    Always,
}

/// A change to a group.
#[derive(Clone, Copy, Debug)]
pub enum Change {
    Slots(u32),
    Pause(bool),
    Remove,
}

/// The time limit of a task for becoming ready, in milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct ReadyPick {
    pub timeout: Option<u16>,
}

/// Where a task starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartMode {
    Background,
    Foreground,
    /// In the foreground, started directly by the user, so that it stays there.
    Direct,
}

/// A number of an inbox item, possibly one that was never assigned.
#[derive(Clone, Copy, Debug)]
pub enum Mark {
    None,
    /// This many before the last one.
    Back(u8),
    Ahead(u8),
    All,
}

/// How long an agent may be silent, and how long its questions wait, in milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    pub silence: u16,
    pub question: u16,
}

/// How a task is referred to.
#[derive(Clone, Debug)]
pub struct Pick {
    pub index: usize,
    pub form: Form,
}

#[derive(Clone, Copy, Debug)]
pub enum Form {
    Whole,
    Prefix(usize),
    Cleared,
    Unknown,
}

/// A selection of tasks.
#[derive(Clone, Debug)]
pub enum Which {
    Ids(Vec<Pick>),
    All,
    Session(u8),
    /// Tasks of a group that have not ended.
    Group(u8),
    /// Tasks of a batch, which may not exist.
    Batch(usize),
}

/// Why a fact is stale.
#[derive(Clone, Copy, Debug)]
pub enum Stale {
    LaterRun,
    EarlierRun,
    Cleared,
    Settled,
}

/// Number of kinds of facts that can be stale.
pub const STALE_FACTS: usize = 16;

pub const CLIENTS: usize = 4;
pub const SESSIONS: u8 = 3;

fn pick() -> impl Strategy<Value = Pick> {
    let form = prop_oneof![
        12 => Just(Form::Whole),
        4 => (4usize..=12).prop_map(Form::Prefix),
        1 => Just(Form::Cleared),
        1 => Just(Form::Unknown),
    ];
    (0usize..64, form).prop_map(|(index, form)| Pick { index, form })
}

fn which() -> impl Strategy<Value = Which> {
    prop_oneof![
        6 => vec(pick(), 0..4).prop_map(Which::Ids),
        1 => Just(Which::All),
        1 => (0..SESSIONS).prop_map(Which::Session),
        1 => (0u8..3).prop_map(Which::Group),
        1 => (0usize..6).prop_map(Which::Batch),
    ]
}

fn signal() -> impl Strategy<Value = i32> {
    prop_oneof![Just(15), Just(2), Just(9)]
}

/// Milliseconds: often 0, sometimes equal.
fn ms() -> impl Strategy<Value = u16> {
    prop_oneof![Just(0), Just(100), 0u16..2000]
}

fn block_mode() -> impl Strategy<Value = BlockMode> {
    use BlockMode::{All, AllOrAsks, Any, AnyOrAsks};
    prop_oneof![Just(All), Just(Any), Just(AllOrAsks), Just(AnyOrAsks)]
}

fn patience() -> impl Strategy<Value = Patience> {
    (ms(), ms()).prop_map(|(silence, question)| Patience { silence, question })
}

fn place() -> impl Strategy<Value = StartMode> {
    prop_oneof![8 => Just(StartMode::Background), 3 => Just(StartMode::Foreground), 1 => Just(StartMode::Direct)]
}

fn mark() -> impl Strategy<Value = Mark> {
    prop_oneof![
        4 => Just(Mark::None),
        8 => (0u8..30).prop_map(Mark::Back),
        1 => (1u8..6).prop_map(Mark::Ahead),
        1 => Just(Mark::All),
    ]
}

/// Operations on sessions and their inboxes.
fn inbox() -> impl Strategy<Value = Op> {
    let client = || 0..CLIENTS;
    let session = || 0..SESSIONS;
    prop_oneof![
        10 => (client(), session()).prop_map(|(client, session)| Op::Own { client, session }),
        40 => (client(), session(), mark(), option::weighted(0.6, ms()), prop_oneof![1usize..4, Just(100)])
            .prop_map(|(client, session, after, wait, limit)| Op::ReadInbox {
                client, session, after, wait, limit
            }),
        14 => (client(), session(), mark())
            .prop_map(|(client, session, upto)| Op::Acknowledge { client, session, upto }),
    ]
}

fn after() -> impl Strategy<Value = Vec<(Pick, u8)>> {
    vec((pick(), 0u8..5), 0..3)
}

fn start() -> impl Strategy<Value = StartPick> {
    prop_oneof![ms().prop_map(StartPick::In), ms().prop_map(StartPick::At)]
}

fn repetition() -> impl Strategy<Value = Repetition> {
    prop_oneof![
        6 => (1u8..4, ms(), any::<bool>(), any::<bool>())
            .prop_map(|(times, delay, codes, signal)| Repetition::Retry { times, delay, codes, signal }),
        1 => Just(Repetition::OnFailure),
        3 => Just(Repetition::Always),
    ]
}

/// Often plain, so that one rule can be seen without the others.
fn plan() -> impl Strategy<Value = PlanPick> {
    (
        option::weighted(0.4, prop_oneof![20 => 0u8..3, 1 => Just(3u8)]),
        prop_oneof![3 => Just(0i8), 1 => -2i8..=2],
        prop_oneof![6 => Just(1u32), 2 => 0u32..4],
        after(),
        option::weighted(0.2, start()),
        prop::bool::weighted(0.1),
        option::weighted(0.4, repetition()),
    )
        .prop_map(|(group, priority, slots, after, start, hold, again)| PlanPick {
            group,
            priority,
            slots,
            after,
            start,
            hold,
            again,
        })
}

fn many() -> impl Strategy<Value = Op> {
    (
        0..CLIENTS,
        option::of(0..SESSIONS),
        0u8..3,
        option::weighted(0.4, plan()),
        option::weighted(0.6, 1u32..3),
        option::weighted(0.6, 1u32..3),
        vec(1usize..5, 1..4),
        prop::bool::weighted(0.1),
        prop::bool::weighted(0.2),
    )
        .prop_map(|(client, session, env, plan, jobs, max_fails, parts, stray, open)| Op::Many {
            client,
            session,
            env,
            plan,
            jobs,
            max_fails,
            parts,
            stray,
            open,
        })
}

/// Changes to the order of tasks.
fn order() -> impl Strategy<Value = Op> {
    let client = || 0..CLIENTS;
    prop_oneof![
        20 => (client(), which(), any::<bool>()).prop_map(|(client, which, held)| Op::Hold { client, which, held }),
        20 => (
            (client(), pick(), prop::bool::weighted(0.8)),
            option::weighted(0.3, 0u8..4), option::weighted(0.3, -2i8..=2), option::weighted(0.3, 0u32..5),
            option::weighted(0.5, after()), option::weighted(0.3, start()),
        )
            .prop_map(|((client, pick, aimed), group, priority, slots, after, start)| Op::Edit {
                client, pick, aimed, group, priority, slots, after, start
            }),
        24 => (client(), 0u8..3, prop_oneof![
            9 => (1u32..5).prop_map(Change::Slots), 3 => any::<bool>().prop_map(Change::Pause), 9 => Just(Change::Remove),
        ])
            .prop_map(|(client, group, change)| Op::Group { client, group, change }),
    ]
}

/// Usually more than is ever used.
fn memory() -> impl Strategy<Value = usize> {
    prop_oneof![3 => Just(1 << 20), 1 => 2_000usize..40_000]
}

fn stale() -> impl Strategy<Value = Stale> {
    prop_oneof![Just(Stale::LaterRun), Just(Stale::EarlierRun), Just(Stale::Cleared), Just(Stale::Settled)]
}

/// Milliseconds that pass in one step; rarely more than the longest wait for a hanging start.
fn advance() -> impl Strategy<Value = u64> {
    prop_oneof![8 => Just(0u64), 8 => Just(100), 8 => 0u64..300, 8 => 0u64..5000, 1 => 10_000u64..15_000]
}

/// One step; frequent operations are chosen more often. A history rarely has a shutdown, and its last steps then test
/// a closed core.
fn op() -> impl Strategy<Value = Op> {
    let client = || 0..CLIENTS;
    let session = || option::of(0..SESSIONS);
    prop_oneof![
        90 => (client(), session(), option::weighted(0.2, 0u8..3), 0u8..3, option::weighted(0.3, ms()),
            option::weighted(0.5, patience()), place(), option::weighted(0.4, plan()),
            option::weighted(0.3, option::of(ms()).prop_map(|timeout| ReadyPick { timeout })))
            .prop_map(|(client, session, key, env, time_limit, agent, place, plan, ready)| Op::Submit {
                client, session, key, env, time_limit, agent, place, plan, ready
            }),
        40 => (client(), which(), prop::bool::weighted(0.6))
            .prop_map(|(client, which, paused)| Op::Pause { client, which, paused }),
        40 => order(),
        14 => many(),
        30 => (client(), pick(), prop::bool::weighted(0.8), prop::bool::weighted(0.8), any::<bool>())
            .prop_map(|(client, pick, aimed, by_owner, twice)| Op::Detach {
                client, pick, aimed, by_owner, twice
            }),
        6 => (client(), session(), option::weighted(0.2, 0u8..3), option::weighted(0.3, ms()))
            .prop_map(|(client, session, key, time_limit)| Op::Adopt { client, session, key, time_limit }),
        50 => (client(), pick(), prop::bool::weighted(0.8), 0u8..5)
            .prop_map(|(client, pick, aimed, prompt)| Op::Resume { client, pick, aimed, prompt }),
        25 => (client(), pick(), prop::bool::weighted(0.8), 0usize..6, 0u8..4)
            .prop_map(|(client, pick, aimed, question, option)| Op::Answer {
                client, pick, aimed, question, option
            }),
        300 => (0usize..32, any::<u8>()).prop_map(|(proc, roll)| Op::Act { proc, roll }),
        70 => (advance(), any::<bool>(), prop_oneof![
            9 => Just(0i64), 1 => -1_000_000i64..1_000_000
        ])
            .prop_map(|(ms, late, wall_jump)| Op::Advance { ms, late, wall_jump }),
        40 => (client(), vec(pick(), 0..5), option::weighted(0.7, ms()), block_mode(), any::<bool>())
            .prop_map(|(client, picks, timeout, mode, ready)| Op::Block { client, picks, timeout, mode, ready }),
        30 => (client(), which(), option::of(signal()), option::of(ms()))
            .prop_map(|(client, which, signal, grace)| Op::Cancel { client, which, signal, grace }),
        24 => (client(), which(), any::<bool>())
            .prop_map(|(client, which, active_too)| Op::Clear { client, which, active_too }),
        6 => (client(), 0..SESSIONS).prop_map(|(client, session)| Op::EndSession { client, session }),
        64 => inbox(),
        12 => (client(), pick(), signal(), any::<bool>())
            .prop_map(|(client, pick, signal, tree)| Op::Signal { client, pick, signal, tree }),
        16 => (client(), pick(), any::<bool>())
            .prop_map(|(client, pick, complete)| Op::Retrieve { client, pick, complete }),
        1 => (client(), option::of(ms()), any::<bool>())
            .prop_map(|(client, grace, cancels)| Op::Shutdown { client, grace, cancels }),
        12 => client().prop_map(|client| Op::Disconnect { client }),
        6 => (1usize..6, 4usize..48, memory(), prop_oneof![Just(0u64), Just(100), 0u64..1000], 1usize..12, option::of((1u64..20_000, 0u64..40, 1usize..24)))
            .prop_map(|(max_concurrent_tasks, tasks, memory, grace, inbox_items, history)| Op::Configure {
                max_concurrent_tasks, tasks, memory, grace, inbox_items, history
            }),
        6 => proptest::bool::weighted(0.3).prop_map(Op::HoldStarts),
        9 => (0usize..32).prop_map(|pick| Op::Relapse { pick }),
        20 => (0usize..64, stale(), 0usize..STALE_FACTS).prop_map(|(pick, kind, fact)| Op::Stale { pick, kind, fact }),
        5 => Just(Op::Reload),
        10 => (session(), any::<u8>(), 1usize..6)
            .prop_map(|(session, status, limit)| Op::List { session, status, limit }),
    ]
}

/// A history whose number of steps is in this range.
pub fn history(length: std::ops::Range<usize>) -> impl Strategy<Value = Vec<Op>> {
    vec(op(), length)
}
