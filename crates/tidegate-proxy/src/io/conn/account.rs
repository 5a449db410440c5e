//! What a connection's tenant used and has not been charged for yet.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use super::limiter::{Claimant, Limiter, Mode, Neighbours, Tenant};
use super::meter;
use crate::io::spool::Holder;
use crate::machine::Resource;
use crate::machine::admission::Costs;

/// Bytes after which a transfer under way is charged.
const SETTLE_BYTES: u64 = Resource::NetworkBytes.part_max();
/// Nanoseconds of work after which a task under way is charged.
const SETTLE_NS: u64 = Resource::EventTime.part_max();

/// What the work of an account is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Work {
    /// Cryptography before the first request.
    Handshake,
    /// Everything else.
    Serving,
}

/// One connection's, or one HTTP/2 stream's, use of what is shared.
///
/// Estimates are charged when something is admitted; the account settles the difference when the truth is known, and
/// in between when much has come together.
#[derive(Debug)]
pub(crate) struct Account {
    limiter: Arc<Limiter>,
    tenant: Cell<Tenant>,
    /// Who takes turns for the tenant, as it was when it was turned to.
    claimant: Cell<Claimant>,
    work: Cell<Work>,
    bytes: Used,
    disk: Used,
    event: Used,
    handshake: Used,
    /// Bytes that others were charged with, and that still come by here.
    elsewhere: Cell<u64>,
    /// Connections and bytes held for the tenant.
    held: Cell<Held>,
    /// What the last part of work under way used, if the next one is to be asked for.
    part: Cell<Option<Part>>,
}

/// What a part of a long body used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Part {
    bytes: u64,
    event_ns: u64,
}

#[derive(Debug, Default)]
struct Used {
    /// Charged beforehand.
    estimated: Cell<u64>,
    /// Used, and not charged yet.
    actual: Cell<u64>,
    /// Charged since the last piece of work ended.
    charged: Cell<u64>,
    /// Pieces of work that were begun and have not ended: those that something was charged for beforehand.
    pieces: Cell<u64>,
}

impl Used {
    /// True if there is nothing to charge, and nothing to learn.
    fn is_settled(&self) -> bool {
        self.actual.get() == 0 && self.estimated.get() == 0 && self.pieces.get() == 0
    }

    /// Charges what is not charged yet; if a piece of work has ended, learns what it cost. What belongs to no piece, as the
    /// end of a connection does, teaches nothing.
    fn settle(&self, limiter: &mut Neighbours, tenant: Tenant, resource: Resource, ends: bool) {
        let (estimated, actual) = (self.estimated.take(), self.actual.take());
        if estimated != 0 || actual != 0 {
            limiter.correct(tenant, resource, estimated, actual, meter::now());
            self.charged.set(self.charged.get().saturating_add(actual));
        }
        if ends {
            let (cost, pieces) = (self.charged.take(), self.pieces.get());
            if pieces > 0 {
                self.pieces.set(pieces - 1);
                limiter.learn(tenant, resource, cost, meter::now());
            }
        }
    }

    fn add(&self, amount: u64) -> u64 {
        self.actual.set(self.actual.get().saturating_add(amount));
        self.actual.get()
    }
}

/// A handshake that was charged beforehand and has not begun. Dropped before it does, it is given back, and teaches nothing
/// about what handshakes cost.
#[derive(Debug)]
pub(crate) struct Unbegun(Option<Rc<Account>>);

impl Unbegun {
    /// That of `account`.
    pub(crate) fn new(account: &Rc<Account>) -> Self {
        Self(Some(Rc::clone(account)))
    }

    /// It begins now.
    pub(crate) fn begin(mut self) {
        self.0 = None;
    }
}

impl Drop for Unbegun {
    fn drop(&mut self) {
        if let Some(account) = self.0.take() {
            account.forgo_handshake();
        }
    }
}

#[derive(Clone, Copy, Default, Debug)]
struct Held {
    connections: u64,
    memory: u64,
}

impl Account {
    /// An account of `tenant` on which nothing stands.
    pub(crate) fn open(limiter: Arc<Limiter>, tenant: Tenant) -> Rc<Self> {
        let claimant =
            if tenant == Tenant::OTHER { Claimant::OTHER } else { limiter.with(|limiter| limiter.claimant(tenant)) };
        Self::open_for(limiter, tenant, claimant)
    }

    fn open_for(limiter: Arc<Limiter>, tenant: Tenant, claimant: Claimant) -> Rc<Self> {
        Rc::new(Self {
            limiter,
            tenant: Cell::new(tenant),
            claimant: Cell::new(claimant),
            work: Cell::new(Work::Serving),
            bytes: Used::default(),
            disk: Used::default(),
            event: Used::default(),
            handshake: Used::default(),
            elsewhere: Cell::new(0),
            held: Cell::default(),
            part: Cell::new(None),
        })
    }

    /// Another account of the same tenant, on which nothing stands.
    pub(crate) fn beside(&self) -> Rc<Self> {
        Self::open_for(Arc::clone(&self.limiter), self.tenant(), self.claimant())
    }

    /// What its work is.
    pub(crate) fn work(&self) -> Work {
        self.work.get()
    }

    /// The share of who pays, beside those of others.
    pub(crate) fn weight(&self) -> u32 {
        self.limiter.with(|limiter| limiter.weight(self.tenant.get()))
    }

    /// Who pays.
    pub(crate) fn tenant(&self) -> Tenant {
        self.tenant.get()
    }

    /// Who takes turns for who pays.
    pub(crate) fn claimant(&self) -> Claimant {
        self.claimant.get()
    }

    /// What the tenant is called, on every core.
    pub(crate) fn tenant_name(&self) -> Arc<str> {
        self.limiter.with(|limiter| limiter.name_of(self.tenant.get()).into())
    }

    /// Whose the room is that it takes in the spool, which all cores share.
    pub(crate) fn spool_holder(&self) -> Holder {
        let tenant = self.tenant.get();
        self.limiter.with(|limiter| Holder { name: limiter.name_of(tenant).into(), source: limiter.source_of(tenant) })
    }

    /// Whether tenants are held to their shares.
    pub(crate) fn is_restricted(&self) -> bool {
        self.limiter.with(|limiter| limiter.config().mode == Mode::Restrict)
    }

    /// From now on `tenant` pays. What was used until now is charged to who used it.
    pub(crate) fn turn_to(&self, tenant: Tenant) {
        if tenant == self.tenant.get() {
            return;
        }
        self.settle();
        self.become_of(tenant);
    }

    /// It turned out to be `tenant` who pays, from the beginning.
    pub(crate) fn become_of(&self, tenant: Tenant) {
        if tenant == self.tenant.get() {
            return;
        }
        let held = self.held.take();
        self.release(held);
        self.tenant.set(tenant);
        self.claimant.set(self.limiter.with(|limiter| limiter.claimant(tenant)));
        self.hold(held.connections, held.memory);
    }

    /// What the next work is.
    pub(crate) fn begin(&self, work: Work) {
        self.work.set(work);
    }

    /// `resource` was charged with `amount` beforehand, for a piece of work that begins now.
    pub(crate) fn estimated(&self, resource: Resource, amount: u64) {
        if let Some(used) = self.used(resource).filter(|_| amount > 0) {
            used.estimated.set(used.estimated.get().saturating_add(amount));
            used.pieces.set(used.pieces.get() + 1);
        }
    }

    /// The handshake that was charged beforehand is not made.
    fn forgo_handshake(&self) {
        self.handshake.pieces.set(0);
        let charged = self.handshake.estimated.take();
        self.limiter.with(|limiter| {
            limiter.give_back(self.tenant.get(), Resource::Handshakes, 1, meter::now());
            limiter.give_back(self.tenant.get(), Resource::HandshakeTime, charged, meter::now());
        });
    }

    /// So many bytes were read for the tenant.
    pub(crate) fn add_read(&self, bytes: u64) {
        self.add_own(bytes);
    }

    /// So many bytes were written for the tenant.
    pub(crate) fn add_written(&self, bytes: u64) {
        self.add_own(bytes);
    }

    /// Charges what nobody else was charged with.
    fn add_own(&self, bytes: u64) {
        let others = self.elsewhere.get().min(bytes);
        self.elsewhere.set(self.elsewhere.get() - others);
        self.add_bytes(bytes - others);
    }

    /// So many bytes moved between the proxy and an upstream.
    pub(crate) fn add_bytes(&self, bytes: u64) {
        if self.bytes.add(bytes) >= SETTLE_BYTES {
            self.end_part();
        }
    }

    /// So many bytes were read from or written to the disk.
    pub(crate) fn add_disk(&self, bytes: u64) {
        if self.disk.add(bytes) >= SETTLE_BYTES {
            self.charge(false);
        }
    }

    /// The tenant's work held the thread for `ns`.
    pub(crate) fn add_time(&self, ns: u64) {
        let used = match self.work.get() {
            Work::Handshake => &self.handshake,
            Work::Serving => &self.event,
        };
        if used.add(ns) >= SETTLE_NS && self.work.get() == Work::Serving {
            self.end_part();
        }
    }

    /// Work that goes on used as much as is charged at once.
    fn end_part(&self) {
        let used = |used: &Used, most: u64| used.actual.get().clamp(1, most);
        let part = Part { bytes: used(&self.bytes, SETTLE_BYTES), event_ns: used(&self.event, SETTLE_NS) };
        self.charge(false);
        self.part.set(Some(part));
    }

    /// Whether a body under way is to ask before it goes on.
    pub(crate) fn needs_part(&self) -> bool {
        self.part.get().is_some()
    }

    /// What the next part of a body under way is expected to use: what the last one did.
    pub(crate) fn next_part(&self) -> Costs {
        let part = self.part.get().unwrap_or(Part { bytes: 1, event_ns: 1 });
        Costs::new().and(Resource::EventTime, part.event_ns).and(Resource::NetworkBytes, part.bytes)
    }

    /// The next part was charged with `costs`. It belongs to the piece of work that is under way.
    pub(crate) fn begin_part(&self, costs: &Costs) {
        self.part.set(None);
        for &(resource, amount) in costs.as_slice() {
            if let Some(used) = self.used(resource) {
                used.estimated.set(used.estimated.get().saturating_add(amount));
            }
        }
    }

    /// Holds connections and bytes for the tenant until the account is closed.
    pub(crate) fn hold(&self, connections: u64, memory: u64) {
        if connections == 0 && memory == 0 {
            return;
        }
        let held = self.held.get();
        self.held.set(Held { connections: held.connections + connections, memory: held.memory + memory });
        self.limiter.with(|limiter| {
            limiter.hold(self.tenant.get(), Resource::Connections, connections, meter::now());
            limiter.hold(self.tenant.get(), Resource::Memory, memory, meter::now());
        });
    }

    /// Notes what the limiter held already when it was asked.
    pub(crate) fn holds(&self, connections: u64, memory: u64) {
        self.held.set(Held { connections, memory });
    }

    /// Whether the limiter was asked for the connection.
    pub(crate) fn has_connection(&self) -> bool {
        self.held.get().connections > 0
    }

    /// The limiter was asked for the connection, for this tenant.
    pub(crate) fn take_connection(&self) {
        let held = self.held.get();
        self.held.set(Held { connections: 1, ..held });
    }

    /// The limiter was asked for so many bytes, for this tenant. They are held as long as the account is open.
    pub(crate) fn take_memory(&self, bytes: u64) {
        let held = self.held.get();
        self.held.set(Held { memory: held.memory + bytes, ..held });
    }

    /// Holds so many bytes more for the tenant, whether or not it may have them.
    pub(crate) fn hold_memory(&self, bytes: u64) {
        self.limiter.with(|limiter| limiter.hold(self.tenant.get(), Resource::Memory, bytes, meter::now()));
        self.take_memory(bytes);
    }

    /// Holds so many bytes more for the tenant, if it may have them; says whether it does.
    pub(crate) fn try_hold_memory(&self, bytes: u64) -> bool {
        let ask = |limiter: &mut Neighbours| limiter.try_hold(self.tenant.get(), Resource::Memory, bytes, meter::now());
        let may = self.limiter.with(ask);
        if may {
            self.take_memory(bytes);
        }
        may
    }

    /// Gives back so many of the bytes that are held.
    pub(crate) fn give_back_memory(&self, bytes: u64) {
        let held = self.held.get();
        let bytes = bytes.min(held.memory);
        self.held.set(Held { memory: held.memory - bytes, ..held });
        self.limiter.with(|limiter| limiter.release(self.tenant.get(), Resource::Memory, bytes, meter::now()));
    }

    /// Bytes that are held.
    #[cfg(test)]
    pub(crate) fn held_memory(&self) -> u64 {
        self.held.get().memory
    }

    /// Time that was put on it since the last piece of work ended.
    #[cfg(test)]
    pub(crate) fn used_ns(&self) -> u64 {
        self.event.actual.get() + self.event.charged.get()
    }

    /// A piece of work has ended: charges what is not charged yet, gives back what was charged too much, and learns.
    pub(crate) fn settle(&self) {
        self.part.set(None);
        self.charge(true);
    }

    /// Charges what was used so far; if a piece of work `ends`, learns what it cost.
    pub(crate) fn charge(&self, ends: bool) {
        let all = self.all();
        if all.iter().all(|(_, used)| used.is_settled()) {
            return;
        }
        self.limiter.with(|limiter| {
            for (resource, used) in all {
                used.settle(limiter, self.tenant.get(), resource, ends);
            }
        });
    }

    fn all(&self) -> [(Resource, &Used); 4] {
        [
            (Resource::NetworkBytes, &self.bytes),
            (Resource::DiskBytes, &self.disk),
            (Resource::EventTime, &self.event),
            (Resource::HandshakeTime, &self.handshake),
        ]
    }

    fn release(&self, held: Held) {
        if held.connections != 0 || held.memory != 0 {
            self.limiter.with(|limiter| {
                limiter.release(self.tenant.get(), Resource::Connections, held.connections, meter::now());
                limiter.release(self.tenant.get(), Resource::Memory, held.memory, meter::now());
            });
        }
    }

    fn used(&self, resource: Resource) -> Option<&Used> {
        match resource {
            Resource::NetworkBytes => Some(&self.bytes),
            Resource::DiskBytes => Some(&self.disk),
            Resource::EventTime => Some(&self.event),
            Resource::HandshakeTime => Some(&self.handshake),
            _ => None,
        }
    }
}

/// Who pays for one stream of a connection that carries many: its bytes are its own tenant's, and only what frames
/// and encrypts them is the connection's.
#[derive(Clone, Debug)]
pub(crate) struct Bill {
    stream: Rc<Account>,
    connection: Rc<Account>,
}

impl Bill {
    /// A new stream's on `connection`. Until it is known whose it is, the connection's tenant pays.
    pub(crate) fn open(connection: &Rc<Account>) -> Self {
        Self { stream: connection.beside(), connection: Rc::clone(connection) }
    }

    /// The stream's own account.
    pub(crate) fn stream(&self) -> &Rc<Account> {
        &self.stream
    }

    /// So many bytes of its request's body came.
    pub(crate) fn add_read(&self, bytes: u64) {
        self.stream.add_read(bytes);
        self.leave_to_stream(bytes);
    }

    /// So many bytes of its answer's body go to the client.
    pub(crate) fn add_written(&self, bytes: u64) {
        self.stream.add_written(bytes);
        self.leave_to_stream(bytes);
    }

    fn leave_to_stream(&self, bytes: u64) {
        let elsewhere = &self.connection.elsewhere;
        elsewhere.set(elsewhere.get().saturating_add(bytes));
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.settle();
        self.release(self.held.get());
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::Instant;

    use super::super::limiter::{NeighboursConfig, Stage, Verdict};
    use super::*;
    use crate::machine::neighbours::Capacity;

    #[test]
    fn a_handshake_that_does_not_begin_teaches_nothing_about_its_cost() {
        let limiter = Arc::new(Limiter::new(NeighboursConfig::default(), Instant::ZERO));
        let tenant = limiter.with(|limiter| limiter.tenant("a", Instant::ZERO));
        let expected = || limiter.with(|limiter| limiter.expected_cost(tenant, Resource::HandshakeTime));
        let handshake = |ns: u64| {
            let account = Account::open(Arc::clone(&limiter), tenant);
            account.estimated(Resource::HandshakeTime, expected());
            account.begin(Work::Handshake);
            let unbegun = Unbegun::new(&account);
            account.add_time(ns);
            (account, unbegun)
        };
        let (begun, unbegun) = handshake(2_000_000);
        unbegun.begin();
        drop(begun);
        assert_eq!(expected(), 2_000_000);
        // Its task is dropped while it waits for its turn.
        (0..10).for_each(|_| drop(handshake(5_000)));
        assert_eq!(expected(), 2_000_000);
    }

    #[test]
    fn each_stream_pays_for_its_own_bytes_and_the_connection_for_the_rest() {
        let limiter = Arc::new(Limiter::new(NeighboursConfig::default(), Instant::ZERO));
        let tenant = |name: &str| limiter.with(|limiter| limiter.tenant(name, Instant::ZERO));
        let connection = Account::open(Arc::clone(&limiter), tenant("first"));
        let (big, small) = (Bill::open(&connection), Bill::open(&connection));
        big.stream().turn_to(tenant("big"));
        big.add_written(100_000);
        // Whose turn it is on the connection changes nothing about who used what.
        small.stream().turn_to(tenant("small"));
        small.add_read(10);
        small.add_written(1);
        connection.add_read(60);
        connection.add_written(100_500);
        let bytes = |account: &Account| account.bytes.actual.get();
        assert_eq!((bytes(big.stream()), bytes(small.stream()), bytes(&connection)), (100_000, 11, 549));
    }

    #[test]
    fn a_streams_memory_is_given_back_once_and_when_nobody_has_a_hand_on_it() {
        let config = NeighboursConfig::default().with(Resource::Memory, Capacity::Fixed(1_000));
        let limiter = Arc::new(Limiter::new(config, Instant::ZERO));
        let payer = limiter.with(|limiter| limiter.tenant("payer", Instant::ZERO));
        let takes = |bytes: u64| {
            let costs = [(Resource::Memory, bytes)];
            let verdict = limiter.with(|limiter| limiter.try_take(payer, Stage::Request, &costs, Instant::ZERO));
            matches!(verdict, Verdict::Admit { .. })
        };
        let connection = Account::open(Arc::clone(&limiter), Tenant::OTHER);
        let [read, cut] = [(); 2].map(|()| {
            let bill = Bill::open(&connection);
            assert!(takes(400));
            bill.stream().turn_to(payer);
            bill.stream().take_memory(400);
            bill
        });
        let body = read.clone();
        drop(read);
        assert!(!takes(500), "its body is still there");
        drop(body);
        assert!(!takes(600), "the other one holds as much as before");
        drop(cut);
        assert!(takes(900));
    }
}
