//! One simulation: daemons one after the other in one world, clients that do whatever they like, and what must hold all
//! the time.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bgd::carry::Obstacle;
use bgd::client::answer::Answer;
use bgd::os::clock::Clock;
use bgd::wire::mailbox::Incoming;
use bgd_shared::message::RequestId;
use bgd_shared::request::UpgradeResult;
use bgd_shared::time::Timestamp;
use serde_json::json;
use tempfile::TempDir;

use super::acts::{Act, act};
use super::chance::{Chance, Trace};
use super::daemon::{Daemon, SLOTS};
use super::model::Model;
use super::peer::Peer;
use super::world::{Due, World};

/// The milliseconds of a day.
const DAY: u64 = 24 * 3600 * 1000;

/// The longest time between two acts of clients.
const PAUSE: u64 = 2_400_000;

/// What has come of a simulation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    pub trace: Trace,
    pub runs: u64,
    pub ended: u64,
    pub crashes: u64,
    pub upgrades: u64,
    pub shutdowns: u64,
}

/// Why a daemon does not go on.
enum Stop {
    Crash,
    Upgrade,
    /// It has ended by itself.
    Ended,
}

/// A simulation under way.
struct Life {
    world: Arc<World>,
    chance: Chance,
    peers: Vec<Peer>,
    last_peer: u64,
    model: Model,
    end: u64,
    is_closing: bool,
    outcome: Outcome,
}

/// Simulates so many days.
pub fn simulate(seed: u64, days: u64) -> Outcome {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let home = tempfile::tempdir_in("/dev/shm").or_else(|_| TempDir::new()).unwrap();
    runtime.block_on(async {
        let clock = Clock::simulated(Timestamp::from_unix_ms(1_800_000_000_000));
        let world = World::new(seed, home.path());
        let mut life = Life {
            end: days * DAY,
            chance: Chance::new(seed),
            peers: Vec::new(),
            last_peer: 0,
            model: Model::new(SLOTS),
            is_closing: false,
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
        let mut number = 0;
        loop {
            number += 1;
            let instance = format!("instance-{number}");
            let mut daemon = Daemon::new(&self.world, clock, home, instance.clone());
            self.meet(&daemon);
            let stop = loop {
                match self.go(&mut daemon).await {
                    Stop::Upgrade => self.upgrade(&mut daemon, home, &instance).await,
                    stop => break stop,
                }
            };
            match stop {
                Stop::Ended => self.has_ended(),
                Stop::Crash | Stop::Upgrade => {
                    self.outcome.crashes += 1;
                    self.world.crash();
                }
            }
            drop(daemon);
            self.outcome.ended += self.model.ended;
            self.peers.clear();
            if self.world.now() >= self.end {
                return;
            }
        }
    }

    /// The first client of a daemon sees every event from the beginning on.
    fn meet(&mut self, daemon: &Daemon) {
        (self.model, self.is_closing) = (Model::new(SLOTS), false);
        self.connect(daemon, false);
        let subscribe = ("events.subscribe", json!({ "since": 0 }), 10_000);
        assert!(self.peers[0].call(&self.world, &daemon.calls, &mut self.chance, subscribe));
    }

    fn connect(&mut self, daemon: &Daemon, is_slow: bool) {
        self.last_peer += 1;
        self.peers.push(Peer::new(self.last_peer, is_slow, &daemon.calls));
    }

    /// Lets the daemon and its clients do what they do.
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
                Due::Client => {
                    let most = if self.chance.percent(70) { 1000 } else { PAUSE };
                    let pause = self.chance.below(most);
                    self.world.after(pause, Due::Client);
                    if let Some(stop) = self.client(calls) {
                        return stop;
                    }
                }
            }
            // No time passes before the daemon has done all that it can.
            tokio::time::sleep(Duration::from_millis(1)).await;
            self.look(calls);
        }
    }

    /// A client does something, or something happens to the daemon.
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
            5..8 => self.world.set_disk(true),
            8..20 => self.world.set_disk(false),
            20..60 => self.world.stray(),
            60..80 if self.peers.len() < 6 => {
                self.last_peer += 1;
                let is_slow = self.chance.percent(50);
                self.peers.push(Peer::new(self.last_peer, is_slow, calls));
            }
            80..90 if self.peers.len() > 1 => {
                let place = 1 + self.chance.below(self.peers.len() as u64 - 1);
                let peer = self.peers.remove(usize::try_from(place).unwrap());
                peer.client.close();
                calls.try_send(Incoming::Gone(peer.client)).unwrap();
            }
            _ => {
                let place = usize::try_from(self.chance.below(self.peers.len() as u64)).unwrap();
                let Act { method, params, within } =
                    act(&mut self.chance, &self.model, self.peers[place].is_slow);
                self.peers[place].call(&self.world, calls, &mut self.chance, (method, params, within));
            }
        }
        None
    }

    fn shut_down(&mut self, calls: &bgd::wire::mailbox::Calls) {
        let grace = self.chance.below(10_000);
        let call = ("daemon.shutdown", json!({ "grace_ms": grace }), grace + 30_000);
        self.is_closing = self.peers[0].call(&self.world, calls, &mut self.chance, call);
    }

    /// Reads what clients have been sent, and checks what must hold.
    fn look(&mut self, calls: &bgd::wire::mailbox::Calls) {
        let Self { world, chance, peers, model, .. } = self;
        let (first, others) = peers.split_first_mut().expect("the first client stays");
        first.read(world, calls, Some(model));
        let now = world.now();
        first.is_answered(now, model);
        for peer in others {
            if !peer.is_slow {
                peer.read(world, calls, None);
                peer.is_answered(now, model);
            } else if chance.percent(3) {
                peer.read(world, calls, None);
            }
        }
    }

    /// The daemon has shut down: everything has ended, and every call is answered.
    fn has_ended(&mut self) {
        assert!(self.is_closing, "nobody has asked for that");
        self.outcome.shutdowns += 1;
        let (calls, _facts, _internals, _mailbox) = bgd::wire::mailbox::new();
        let (first, others) = self.peers.split_first_mut().unwrap();
        first.read(&self.world, &calls, Some(&mut self.model));
        for peer in others {
            peer.read(&self.world, &calls, None);
        }
        self.model.all_have_ended();
        self.world.ended();
    }

    /// Another dispatcher goes on with the state of this one.
    async fn upgrade(&mut self, daemon: &mut Daemon, home: &Path, instance: &str) {
        let client = Arc::clone(&self.peers[0].client);
        if !client.begin_request(0) {
            return;
        }
        let asked = Answer::new(client, Some(RequestId::Number(0.into())), 0);
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
        next.dispatcher.go_on(Some(asked), Ok(result));
        *daemon = next;
    }

    /// Lets the daemon go on for a moment without its clients.
    async fn waits(&mut self, daemon: &mut Daemon) -> Stop {
        let Daemon { dispatcher, mailbox, wall_clock, calls, .. } = daemon;
        let calls = calls.clone();
        let moment = async {
            match tokio::time::timeout(Duration::from_millis(20), self.world.next()).await {
                Ok(Due::Step { task, disturbed }) => self.world.step(task, disturbed),
                Ok(Due::Job(job)) => job(),
                Ok(Due::Done(done)) => drop(done.send(())),
                Ok(Due::Client) => self.world.after(10, Due::Client),
                Err(_) => {}
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        };
        tokio::select! {
            biased;
            () = dispatcher.go(mailbox, wall_clock) => return Stop::Ended,
            () = moment => {}
        }
        self.look(&calls);
        Stop::Upgrade
    }
}
