//! A small plant: clients, one server, and a wire between them, in simulated time.

use std::collections::BTreeMap;
use std::time::Duration;

use tidegate_core::{Instant, Rng};
use tidegate_rpc::config::Scheme;
use tidegate_rpc::machine::any::{AnyClient, AnyServer};
use tidegate_rpc::machine::desk::{Arrival, Called, Desk, Ended, Running, Waiting};
use tidegate_rpc::machine::{
    Ask, CallId, Client, ClientOutput, Done, Grant, Outcome, Priority, Reply, Request, Server, SessionId, Step, Tenant,
};

const SERVICE: Duration = Duration::from_micros(10);
const ONE_WAY: Duration = Duration::from_micros(5);

/// What is played.
#[derive(Clone, Copy)]
pub(crate) struct Setup {
    pub(crate) clients: usize,
    pub(crate) cores: u32,
    /// Calls per second over what the cores can do.
    pub(crate) load: f64,
    /// No calls come after that.
    pub(crate) length: Duration,
    /// Every so many calls, one is cancelled, a connection is lost after as many; 0 for never.
    pub(crate) trouble_every: u64,
}

/// How the calls ended, and what the wire carried beside calls and answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Totals {
    pub(crate) called: u64,
    pub(crate) served: u64,
    pub(crate) shed: u64,
    pub(crate) failed: u64,
    pub(crate) cancelled: u64,
    pub(crate) lost: u64,
    pub(crate) extra_messages: u64,
}

#[derive(Clone, Copy)]
enum Frame {
    Request(CallId, Ask),
    Demand(Ask),
    Cancel(CallId),
    Answer(CallId, Outcome, Grant),
    Grant(Grant),
}

enum Event {
    Call(usize),
    ToServer(usize, u32, Frame),
    ToClient(usize, u32, Frame),
    Finish(Name, Running),
    ServerTimer,
    ClientTimer(usize),
}

/// A call at the server, by the connection that it came over and its caller's name for it.
#[derive(Clone, Copy)]
struct Name {
    client: usize,
    epoch: u32,
    id: CallId,
}

struct Peer {
    machine: AnyClient,
    session: SessionId,
    /// Counts connections: frames of an earlier one go nowhere.
    epoch: u32,
    /// Calls that have not ended, and when they began.
    open: BTreeMap<CallId, Instant>,
}

pub(crate) struct Plant {
    scheme: Scheme,
    setup: Setup,
    desk: Desk<AnyServer, u64>,
    peers: Vec<Peer>,
    /// Calls in line at the server. Calls are numbered through, over all clients.
    waiting: BTreeMap<u64, (Name, Waiting)>,
    events: BTreeMap<(Instant, u64), Event>,
    events_so_far: u64,
    server_timer: Option<Instant>,
    now: Instant,
    rng: Rng,
    totals: Totals,
}

impl Plant {
    pub(crate) fn new(scheme: Scheme, setup: Setup, seed: u64) -> Self {
        let now = Instant::ZERO;
        let mut rng = Rng::new(seed);
        let mut server = scheme.server(setup.cores, now);
        let mut peer = |_| Peer {
            machine: scheme.client(Tenant(0), now, &mut rng),
            session: server.open(Tenant(0), now).expect("there is room"),
            epoch: 0,
            open: BTreeMap::new(),
        };
        let peers = (0..setup.clients).map(&mut peer).collect();
        Self {
            scheme,
            setup,
            desk: Desk::new(server, setup.cores),
            peers,
            waiting: BTreeMap::new(),
            events: BTreeMap::new(),
            events_so_far: 0,
            server_timer: None,
            now,
            rng,
            totals: Totals::default(),
        }
    }

    /// Plays it to the end, and a while longer so that what can end does.
    pub(crate) fn run(mut self) -> Totals {
        for client in 0..self.setup.clients {
            self.plan_call(client);
        }
        self.after_server();
        let end = Instant::ZERO + self.setup.length + Duration::from_millis(20);
        while let Some(((at, _), event)) = self.events.pop_first() {
            if at > end {
                break;
            }
            self.now = at;
            self.play(event);
        }
        let open: usize = self.peers.iter().map(|peer| peer.open.len()).sum();
        assert_eq!(open, 0, "{}: calls that hang: {:?}", self.scheme.name(), self.totals);
        self.totals
    }

    fn plan(&mut self, at: Instant, event: Event) {
        self.events_so_far += 1;
        self.events.insert((at, self.events_so_far), event);
    }

    fn plan_call(&mut self, client: usize) {
        let clients = f64::from(u32::try_from(self.setup.clients).expect("a few"));
        let gap = SERVICE.as_secs_f64() * clients / f64::from(self.setup.cores) / self.setup.load;
        let at = self.now + Duration::from_secs_f64(gap * self.rng.exponential());
        if at <= Instant::ZERO + self.setup.length {
            self.plan(at, Event::Call(client));
        }
    }

    fn play(&mut self, event: Event) {
        match event {
            Event::Call(client) => {
                self.call(client);
                self.plan_call(client);
            }
            Event::ToServer(client, epoch, frame) if epoch == self.peers[client].epoch => {
                self.at_server(client, frame);
                self.after_server();
            }
            Event::ToClient(client, epoch, frame) if epoch == self.peers[client].epoch => {
                self.at_client(client, frame);
                self.after_client(client);
            }
            Event::ToServer(..) | Event::ToClient(..) => {}
            Event::Finish(name, running) => {
                let Ended::Told(grant) = self.desk.end(running, Done::Served, self.now) else {
                    unreachable!("the machine is told of every call")
                };
                self.answer(name, Outcome::Served, grant);
                self.after_server();
            }
            Event::ServerTimer => {
                self.server_timer = None;
                self.desk.on_timeout(Duration::ZERO, self.now);
                self.after_server();
            }
            Event::ClientTimer(client) => {
                self.peers[client].machine.on_timeout(self.now);
                self.after_client(client);
            }
        }
    }

    fn call(&mut self, client: usize) {
        self.totals.called += 1;
        let id = CallId(self.totals.called);
        let request = Request { id, priority: Priority::DEFAULT, deadline: None };
        self.peers[client].open.insert(id, self.now);
        match self.peers[client].machine.on_call(&request, self.now, &mut self.rng) {
            Step::Send(ask) => self.send(client, Frame::Request(id, ask)),
            Step::Wait => self.after_client(client),
            Step::Fail(_) => self.end(client, id, |totals| &mut totals.failed),
        }
        let every = self.setup.trouble_every;
        if every > 0 && id.0.is_multiple_of(every) {
            if (id.0 / every).is_multiple_of(2) { self.cancel(client, id) } else { self.lose(client) }
        }
    }

    fn cancel(&mut self, client: usize, id: CallId) {
        if self.peers[client].open.contains_key(&id) {
            self.end(client, id, |totals| &mut totals.cancelled);
            self.peers[client].machine.on_cancel(id, self.now);
            self.send(client, Frame::Cancel(id));
            self.after_client(client);
        }
    }

    fn lose(&mut self, client: usize) {
        let peer = &mut self.peers[client];
        self.desk.machine_mut().close(peer.session, self.now);
        peer.epoch += 1;
        peer.session = self.desk.machine_mut().open(Tenant(0), self.now).expect("there is room");
        peer.machine.on_lost(self.now);
        self.after_client(client);
        let peer = &mut self.peers[client];
        self.totals.lost += u64::try_from(peer.open.len()).expect("a few");
        peer.open.clear();
        self.after_server();
    }

    /// Every call ends once.
    fn end(&mut self, client: usize, id: CallId, how: fn(&mut Totals) -> &mut u64) {
        assert!(self.peers[client].open.remove(&id).is_some(), "{id:?} ended twice");
        *how(&mut self.totals) += 1;
    }

    fn send(&mut self, client: usize, frame: Frame) {
        let epoch = self.peers[client].epoch;
        self.plan(self.now + ONE_WAY, Event::ToServer(client, epoch, frame));
    }

    fn at_server(&mut self, client: usize, frame: Frame) {
        let Peer { session, epoch, .. } = self.peers[client];
        match frame {
            Frame::Request(id, ask) => {
                let name = Name { client, epoch, id };
                match self.desk.on_request(&Arrival::new(session, &ask, self.now), id.0, self.now) {
                    Ok(waiting) => drop(self.waiting.insert(id.0, (name, waiting))),
                    Err(refused) => self.answer(name, Outcome::Shed, refused.grant),
                }
            }
            Frame::Demand(ask) => self.desk.machine_mut().on_demand(session, &ask, self.now),
            Frame::Cancel(id) => {
                if let Some((_, waiting)) = self.waiting.remove(&id.0) {
                    self.desk.cancel(waiting, self.now);
                }
            }
            Frame::Answer(..) | Frame::Grant(_) => unreachable!("clients do not answer"),
        }
    }

    /// Runs calls whose turn has come.
    fn start(&mut self) {
        while let Some(called) = self.desk.poll_call(self.now) {
            let Called::Start(number) = called else { unreachable!("no handler waits") };
            self.start_one(number);
        }
        while let Some(number) = self.desk.poll_expired(self.now) {
            self.start_one(number);
        }
    }

    fn start_one(&mut self, number: u64) {
        let (name, waiting) = self.waiting.remove(&number).expect("it is in line");
        match self.desk.start(waiting, self.now) {
            Ok(running) => self.plan(self.now + SERVICE, Event::Finish(name, running)),
            Err(refused) => self.answer(name, Outcome::Shed, refused.grant),
        }
    }

    fn answer(&mut self, name: Name, outcome: Outcome, grant: Grant) {
        let frame = Frame::Answer(name.id, outcome, grant);
        self.plan(self.now + ONE_WAY, Event::ToClient(name.client, name.epoch, frame));
    }

    fn after_server(&mut self) {
        self.start();
        while let Some((session, grant)) = self.desk.poll_grant() {
            self.totals.extra_messages += 1;
            let client = self.peers.iter().position(|peer| peer.session == session).expect("a session is someone's");
            let epoch = self.peers[client].epoch;
            self.plan(self.now + ONE_WAY, Event::ToClient(client, epoch, Frame::Grant(grant)));
        }
        let Some(due) = self.desk.next_timeout() else { return };
        if self.server_timer.is_none_or(|planned| due < planned) {
            self.server_timer = Some(due);
            self.plan(due.max(self.now), Event::ServerTimer);
        }
    }

    fn at_client(&mut self, client: usize, frame: Frame) {
        let peer = &mut self.peers[client];
        match frame {
            Frame::Answer(id, outcome, grant) => {
                let Some(&began) = peer.open.get(&id) else {
                    // Cancelled meanwhile: the grant is as good as any.
                    peer.machine.on_grant(&grant, self.now);
                    return;
                };
                let response_time = self.now.since(began);
                let reply = Reply { id, outcome, grant: Some(grant), response_time, server_time: SERVICE };
                peer.machine.on_reply(&reply, self.now);
                match outcome {
                    Outcome::Served => self.end(client, id, |totals| &mut totals.served),
                    Outcome::Shed => self.end(client, id, |totals| &mut totals.shed),
                }
            }
            Frame::Grant(grant) => peer.machine.on_grant(&grant, self.now),
            Frame::Request(..) | Frame::Demand(_) | Frame::Cancel(_) => unreachable!("servers do not ask"),
        }
    }

    fn after_client(&mut self, client: usize) {
        while let Some(output) = self.peers[client].machine.poll_output() {
            match output {
                ClientOutput::Send(id, ask) => self.send(client, Frame::Request(id, ask)),
                ClientOutput::Fail(id, _) => self.end(client, id, |totals| &mut totals.failed),
                ClientOutput::Demand(ask) => {
                    self.totals.extra_messages += 1;
                    self.send(client, Frame::Demand(ask));
                }
            }
        }
        if let Some(due) = self.peers[client].machine.next_timeout() {
            assert!(due > self.now, "a client asks to be called back in the past");
            self.plan(due, Event::ClientTimer(client));
        }
    }
}
