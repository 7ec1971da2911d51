//! One simulation: consecutive daemons in one world, clients that do whatever they like, and the rules that must hold
//! at all times.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bgd::carry::Obstacle;
use bgd::client::answer::Answer;
use bgd::os::clock::Clock;
use bgd::wire::mailbox::Incoming;
use bgd_shared::request::UpgradeResult;
use bgd_shared::time::Timestamp;
use serde_json::json;
use tempfile::TempDir;

use super::calls::{ClientCall, SOON, act};
use super::chance::{Chance, Trace};
use super::daemon::{Daemon, SLOTS};
use super::disk::Room;
use super::keeper::Killed;
use super::model::{Model, Unanswered};
use super::peer::Peer;
use super::world::{Due, World};

/// A day, in milliseconds.
const DAY: u64 = 24 * 3600 * 1000;

/// The longest time between two actions of clients, in milliseconds.
const PAUSE: u64 = 2_400_000;

/// The result of a simulation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    pub trace: Trace,
    pub runs: u64,
    pub ended: u64,
    pub crashes: u64,
    pub upgrades: u64,
    pub shutdowns: u64,
    /// How many durable daemons have left their tasks.
    pub stops: u64,
}

/// The kind of daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Its tasks end with it.
    Plain,
    /// Its tasks continue after it.
    Durable,
}

/// Why a daemon stops.
enum Stop {
    Crash,
    Upgrade,
    /// It has ended by itself.
    Ended,
}

/// A simulation in progress.
struct Life {
    world: Arc<World>,
    chance: Chance,
    peers: Vec<Peer>,
    last_peer: u64,
    /// Calls without an answer of clients that have disconnected since this daemon began: it may carry them out.
    abandoned: Vec<&'static str>,
    model: Model,
    end: u64,
    is_closing: bool,
    /// Whether the daemon that is shutting down leaves its tasks.
    is_leaving: bool,
    outcome: Outcome,
}

/// Simulates this many days of a daemon.
pub fn simulate(seed: u64, days: u64, kind: Kind) -> Outcome {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let home = tempfile::tempdir_in("/dev/shm").or_else(|_| TempDir::new()).unwrap();
    runtime.block_on(async {
        let clock = Clock::simulated(Timestamp::from_unix_ms(1_800_000_000_000));
        let world = World::new(seed, kind, home.path());
        let mut life = Life {
            end: days * DAY,
            chance: Chance::new(seed),
            peers: Vec::new(),
            last_peer: 0,
            abandoned: Vec::new(),
            model: Model::new(SLOTS),
            is_closing: false,
            is_leaving: false,
            outcome: Outcome::default(),
            world,
        };
        life.live(clock, home.path()).await;
        let (trace, runs) = life.world.seen();
        Outcome { trace, runs, ..life.outcome }
    })
}

impl Life {
    async fn live(&mut self, clock: Clock, home: &Path) {
        self.world.after(1, Due::Client);
        let (mut number, mut why) = (0, "");
        loop {
            number += 1;
            // A durable daemon keeps the instance of its predecessor.
            let instance = if self.is_durable() { 1 } else { number };
            let instance = format!("instance-{instance}");
            let mut daemon = Daemon::new(&self.world, clock, home, instance.clone());
            if self.is_durable() {
                daemon.begin_again(&self.world, why);
                self.settle(&mut daemon).await;
            }
            self.meet(&daemon);
            let stop = loop {
                match self.go(&mut daemon).await {
                    Stop::Upgrade => self.upgrade(&mut daemon, home, &instance).await,
                    stop => break stop,
                }
            };
            self.outcome.ended += std::mem::take(&mut self.model.ended);
            why = match stop {
                Stop::Ended => self.has_ended(),
                Stop::Crash | Stop::Upgrade => self.crash(),
            };
            drop(daemon);
            self.peers.clear();
            if self.world.now() >= self.end {
                return;
            }
            if self.is_durable() {
                self.pass_time_without_daemon().await;
            }
        }
    }

    fn is_durable(&self) -> bool {
        self.world.kind == Kind::Durable
    }

    /// Kills the daemon. Returns why running processes are lost, if they are.
    fn crash(&mut self) -> &'static str {
        self.outcome.crashes += 1;
        if !self.is_durable() {
            self.world.crash();
            return "";
        }
        self.remember();
        let killed = match self.chance.below(10) {
            0 => Killed::Restart,
            1 => Killed::WithKeeper,
            _ => Killed::Alone,
        };
        self.world.trace(format!("killed {killed:?}").as_bytes());
        self.world.kill(killed);
        killed.why()
    }

    /// Records which calls of a durable daemon had no reply, and whether its last changes were unwritten.
    fn remember(&mut self) {
        let unwritten = self.world.state().disk.is_troubled;
        let mut unanswered = Unanswered { unwritten, ..Unanswered::default() };
        let abandoned = std::mem::take(&mut self.abandoned);
        for method in self.peers.iter().flat_map(Peer::unanswered).chain(abandoned) {
            unanswered.removes |= ["task.clear", "session.end"].contains(&method);
            unanswered.adds |= ["task.submit", "task.submit_many", "task.rerun"].contains(&method);
        }
        self.model.restart(unanswered);
    }

    /// Lets time pass without a daemon, while processes continue.
    async fn pass_time_without_daemon(&mut self) {
        let span = self.chance.span();
        let end = self.world.now() + if self.chance.percent(50) { 0 } else { span };
        while self.world.now() < end {
            let left = Duration::from_millis(end - self.world.now());
            match tokio::time::timeout(left, self.world.next()).await {
                Ok(Due::Step { task, disturbed }) => self.world.step(task, disturbed),
                Ok(Due::Client) => self.world.after(span + 1, Due::Client),
                Ok(Due::Job(_) | Due::Done(_) | Due::Order { .. } | Due::Kill | Due::Write) | Err(_) => {}
            }
        }
        // A daemon only starts if it can write.
        self.world.set_room(Room::Enough);
    }

    /// Lets a durable daemon persist its findings, so that its lists match its events.
    async fn settle(&mut self, daemon: &mut Daemon) {
        let mut moments = 0;
        loop {
            moments += 1;
            assert!(moments < 10_000, "a daemon does not come to rest");
            let Daemon { dispatcher, mailbox, wall_clock, .. } = daemon;
            tokio::select! {
                biased;
                () = dispatcher.go(mailbox, wall_clock) => panic!("nobody has asked it to end"),
                () = moment(&self.world) => {}
            }
            if daemon.is_idle() && self.world.is_written() && self.world.check_orders_delivered() {
                return;
            }
        }
    }

    /// Connects the first client of a daemon, which sees every event from the beginning.
    fn meet(&mut self, daemon: &Daemon) {
        self.is_closing = false;
        let since = if self.is_durable() {
            if !self.model.is_new() {
                self.model = Model::new(SLOTS);
                self.model.restart(Unanswered::default());
            }
            json!({})
        } else {
            self.model = Model::new(SLOTS);
            json!({ "since": 0 })
        };
        self.connect(daemon, false);
        let calls = &daemon.calls;
        let (world, chance, first) = (&self.world, &mut self.chance, &mut self.peers[0]);
        assert!(first.call(world, calls, chance, ("events.subscribe", since, 10_000)));
        if world.kind == Kind::Durable {
            assert!(first.call(world, calls, chance, ("task.list", json!({ "limit": 1000 }), 10_000)));
        }
    }

    fn connect(&mut self, daemon: &Daemon, is_slow: bool) {
        self.last_peer += 1;
        self.peers.push(Peer::new(self.last_peer, is_slow, &daemon.calls));
    }

    /// Lets the daemon and its clients run.
    async fn go(&mut self, daemon: &mut Daemon) -> Stop {
        let Daemon { dispatcher, mailbox, wall_clock, calls, .. } = daemon;
        let calls = calls.clone();
        tokio::select! {
            biased;
            () = dispatcher.go(mailbox, wall_clock) => Stop::Ended,
            stop = self.drive(&calls) => stop,
        }
    }

    async fn drive(&mut self, calls: &bgd::wire::mailbox::Calls) -> Stop {
        loop {
            match self.world.next().await {
                Due::Step { task, disturbed } => self.world.step(task, disturbed),
                Due::Job(job) => job(),
                // The client may have disconnected.
                Due::Done(done) => drop(done.send(())),
                Due::Order { task, run } => self.world.carry_out(task, run),
                Due::Kill if !self.is_closing => return Stop::Crash,
                Due::Kill => {}
                Due::Write => self.world.write(),
                Due::Client => {
                    let most = if self.chance.percent(70) { 1000 } else { PAUSE };
                    let pause = self.chance.below(most);
                    self.world.after(pause, Due::Client);
                    if let Some(stop) = self.client(calls) {
                        return stop;
                    }
                }
            }
            // No time passes before the daemon has done all pending work.
            tokio::time::sleep(Duration::from_millis(1)).await;
            self.look(calls);
        }
    }

    /// Lets a client do something, or something happen to the daemon.
    fn client(&mut self, calls: &bgd::wire::mailbox::Calls) -> Option<Stop> {
        let is_over = self.world.now() >= self.end;
        if self.is_closing {
            return None;
        }
        if is_over {
            self.shut_down(calls);
            return None;
        }
        match self.chance.below(1000) {
            0 => return Some(Stop::Crash),
            1..4 => return Some(Stop::Upgrade),
            4 => self.shut_down(calls),
            5..8 => self.world.set_room(Room::None),
            8..20 => self.world.set_room(Room::Enough),
            20..23 => self.world.set_room(Room::Ahead),
            23..60 => self.world.stray(),
            60..80 if self.peers.len() < 6 => {
                self.last_peer += 1;
                let is_slow = self.chance.percent(50);
                self.peers.push(Peer::new(self.last_peer, is_slow, calls));
            }
            80..90 if self.peers.len() > 1 => {
                let place = 1 + self.chance.below(self.peers.len() as u64 - 1);
                let peer = self.peers.remove(usize::try_from(place).unwrap());
                self.abandoned.extend(peer.unanswered());
                peer.client.close();
                calls.try_send(Incoming::Gone(peer.client)).unwrap();
            }
            _ => {
                let place = usize::try_from(self.chance.below(self.peers.len() as u64)).unwrap();
                let ClientCall { method, params, within } =
                    act(&mut self.chance, &self.model, self.peers[place].is_slow);
                // Its replies wait for the disk.
                let within = if self.is_durable() { within + SOON } else { within };
                // Before the processes have received the order, or shortly after.
                let orders = ["task.cancel", "task.pause", "task.continue"].contains(&method);
                if self.is_durable() && orders && self.chance.percent(5) {
                    self.world.after(self.chance.below(400), Due::Kill);
                }
                self.peers[place].call(&self.world, calls, &mut self.chance, (method, params, within));
            }
        }
        None
    }

    fn shut_down(&mut self, calls: &bgd::wire::mailbox::Calls) {
        let grace = self.chance.below(10_000);
        let cancels = !self.is_durable() || self.chance.percent(30);
        let params = json!({ "grace_ms": grace, "cancel": cancels });
        let call = ("daemon.shutdown", params, grace + 30_000);
        self.is_closing = self.peers[0].call(&self.world, calls, &mut self.chance, call);
        self.is_leaving = self.is_closing && !cancels;
    }

    /// Reads the messages sent to clients, and checks the rules.
    fn look(&mut self, calls: &bgd::wire::mailbox::Calls) {
        let Self { world, chance, peers, model, .. } = self;
        let (first, others) = peers.split_first_mut().expect("the first client stays");
        first.read(world, calls, Some(model));
        first.is_answered(world, model);
        model.just_ended.drain(..).for_each(|task| world.is_true(&task));
        for peer in others {
            if !peer.is_slow {
                peer.read(world, calls, None);
                peer.is_answered(world, model);
            } else if chance.percent(3) {
                peer.read(world, calls, None);
            }
        }
    }

    /// Checks the end of a shutdown: all tasks to be ended have ended, and every call has its reply. Returns why lost
    /// tasks are lost.
    fn has_ended(&mut self) -> &'static str {
        assert!(self.is_closing, "nobody has asked for that");
        self.outcome.shutdowns += 1;
        let (calls, _facts, _internals, _mailbox) = bgd::wire::mailbox::new();
        let (first, others) = self.peers.split_first_mut().unwrap();
        first.read(&self.world, &calls, Some(&mut self.model));
        for peer in others {
            peer.read(&self.world, &calls, None);
        }
        if !self.is_leaving {
            self.model.all_have_ended(self.is_durable());
        }
        match self.world.kind {
            Kind::Plain => self.world.ended(),
            Kind::Durable => {
                self.outcome.stops += u64::from(self.is_leaving);
                self.remember();
                if !self.is_leaving {
                    self.world.nothing_runs();
                }
                self.world.leave();
            }
        }
        "the daemon was stopped"
    }

    /// Continues the state of this dispatcher in another one.
    async fn upgrade(&mut self, daemon: &mut Daemon, home: &Path, instance: &str) {
        let client = Arc::clone(&self.peers[0].client);
        if !client.begin_request(0) {
            return;
        }
        if self.is_durable() {
            // An upgrade is refused while the journal can't be written.
            self.world.set_room(Room::Enough);
        }
        let asked = Answer::new(client, serde_json::from_str("0").unwrap(), 0);
        let mut attempts = 0;
        let state = loop {
            match daemon.frozen(&asked) {
                Ok(state) => break state,
                Err(Obstacle::Passing(what)) => {
                    attempts += 1;
                    assert!(attempts < 10_000, "{what}, and does not end");
                    if matches!(self.waits(daemon).await, Stop::Ended) {
                        return;
                    }
                }
                Err(Obstacle::Lasting(what)) => panic!("not carried: {what}"),
            }
        };
        self.outcome.upgrades += 1;
        self.world.trace(b"upgrade");
        self.peers.iter_mut().for_each(Peer::carried);
        let clients: HashMap<_, _> =
            self.peers.iter().map(|peer| (peer.client.id, Arc::clone(&peer.client))).collect();
        let asked = asked.state().resume(&clients).unwrap();
        let mut next = daemon.thawed(&state, clients, (&self.world, home, instance.to_owned()));
        let result = UpgradeResult {
            from: "1".into(),
            to: "2".into(),
            pause_ms: 0,
            active: next.dispatcher.active(),
            connections: self.peers.len() as u64,
        };
        next.dispatcher.resume_work(Some(asked), Ok(result));
        *daemon = next;
    }

    /// Lets the daemon continue for a moment without its clients.
    async fn waits(&mut self, daemon: &mut Daemon) -> Stop {
        let Daemon { dispatcher, mailbox, wall_clock, calls, .. } = daemon;
        let calls = calls.clone();
        tokio::select! {
            biased;
            () = dispatcher.go(mailbox, wall_clock) => return Stop::Ended,
            () = moment(&self.world) => {}
        }
        self.look(&calls);
        Stop::Upgrade
    }
}

/// Lets something happen in the world other than by a client.
async fn moment(world: &World) {
    match tokio::time::timeout(Duration::from_millis(20), world.next()).await {
        Ok(Due::Step { task, disturbed }) => world.step(task, disturbed),
        Ok(Due::Job(job)) => job(),
        Ok(Due::Done(done)) => drop(done.send(())),
        Ok(Due::Order { task, run }) => world.carry_out(task, run),
        Ok(Due::Write) => world.write(),
        Ok(Due::Client) => world.after(10, Due::Client),
        Ok(Due::Kill) | Err(_) => {}
    }
    tokio::time::sleep(Duration::from_millis(1)).await;
}
