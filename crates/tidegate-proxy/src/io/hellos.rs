//! Connections of a thread that wait at their hellos until their tenants may have more, as
//! [`hellos`](crate::machine::hellos) decides.
//!
//! One that waits has no task: it is a socket, mostly with its hello still unread, and what is known of it. A driver asks
//! for all of them.

use std::cell::{Cell, RefCell};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::sync::Notify;

use super::gate::Pass;
use super::hello::{self, FIRST_BYTES_MAX};
use super::limiter::{Limiter, Tenant};
use super::meter;
use super::signer::Signer;
use super::thread::{Origin, Thread};
use crate::machine::hellos::{Arrival, Hellos as Machine, Output, Tuning};
use crate::machine::neighbours::Second;

/// Most bytes that one that waits has in memory: more than any usual hello with post-quantum keys has. Those that are still
/// the socket's do not count.
const HELD_MAX: usize = 4 * 1024;
/// So many go on before the sockets are looked at again: each is a task that begins, some tens of microseconds.
const AT_ONCE: usize = 4;

thread_local! {
    /// The thread's own, for whoever looks when it is about to wait.
    static IDLE: RefCell<Option<Rc<Hellos>>> = const { RefCell::new(None) };
}

/// The hellos of one thread that wait.
#[derive(Debug)]
pub(crate) struct Hellos {
    limiter: Arc<Limiter>,
    signer: Option<Rc<Signer>>,
    machine: RefCell<Machine<Waiting>>,
    /// To the driver: one waits now, or there is time to spare.
    look: Notify,
    /// The last turn let none go on though there was time to spare: what they wait for comes later.
    futile: Cell<bool>,
}

/// A connection that waits.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) socket: OwnedFd,
    pub(crate) origin: Origin,
    /// Bytes of its PROXY header.
    pub(crate) header: usize,
    /// Its first bytes, unless they are the socket's still.
    pub(crate) bytes: Option<Vec<u8>>,
    /// Of the gate for its name.
    pub(crate) pass: Option<Pass>,
}

impl Waiting {
    /// Whether its client has closed. What it sent before may be there all the same.
    fn is_gone(&self) -> bool {
        let ends = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        let mut looked = [PollFd::new(&self.socket, PollFlags::RDHUP)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(poll(&mut looked, Some(&now)), Ok(1..)) && looked[0].revents().intersects(ends)
    }
}

impl Hellos {
    /// None waits.
    pub(crate) fn new(
        limiter: Arc<Limiter>,
        signer: Option<Rc<Signer>>,
        patience: Duration,
        places: usize,
    ) -> Rc<Self> {
        let machine = Machine::new(Tuning::default(), patience, places, meter::now());
        let made = Rc::new(Self {
            limiter,
            signer,
            machine: RefCell::new(machine),
            look: Notify::new(),
            futile: Cell::new(false),
        });
        IDLE.set(Some(Rc::clone(&made)));
        made
    }

    /// Another patience.
    pub(crate) fn set_patience(&self, patience: Duration) {
        self.machine.borrow_mut().set_patience(patience);
    }

    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        self.machine.borrow().len()
    }

    /// Whether none waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.machine.borrow().is_empty()
    }

    /// A hello of `tenant` comes, of which `held` bytes were taken off its socket.
    pub(crate) fn ask(&self, tenant: Tenant, held: usize) -> Arrival {
        let (second, may_wait) = (self.second(), held <= HELD_MAX);
        let mut machine = self.machine.borrow_mut();
        self.limiter.with(|limiter| machine.arrive(limiter, tenant, may_wait, second, meter::now()))
    }

    /// One of `tenant` that was told so waits from now on.
    pub(crate) fn push(&self, tenant: Tenant, waiting: Waiting) {
        let mut machine = self.machine.borrow_mut();
        if machine.is_empty() {
            self.look.notify_one();
        }
        self.limiter.with(|limiter| machine.push(limiter, tenant, waiting, meter::now()));
    }

    fn second(&self) -> Second {
        self.signer.as_ref().map(|signer| signer.room()).unwrap_or_default()
    }
}

/// Lets go on those whose time has come. Never ends.
pub(crate) async fn drive(thread: Rc<Thread>) {
    let hellos = Rc::clone(&thread.hellos);
    let mut scratch = vec![0; FIRST_BYTES_MAX];
    loop {
        let next = hellos.machine.borrow().next_timeout(meter::now());
        match next {
            Some(next) => tokio::select! {
                () = tokio::time::sleep(next - meter::now()) => {}
                () = hellos.look.notified() => {}
            },
            None => hellos.look.notified().await,
        }
        meter::stamp();
        turn(&thread, &mut scratch).await;
    }
}

/// One turn of those that wait.
async fn turn(thread: &Rc<Thread>, scratch: &mut [u8]) {
    let hellos = &thread.hellos;
    let mut turn = {
        let mut machine = hellos.machine.borrow_mut();
        machine.set_places(thread.seats.most());
        hellos.limiter.with(|limiter| machine.turn(limiter, meter::now()))
    };
    let mut is_futile = hellos.second().has_spare;
    for told in 1.. {
        let (second, now) = (hellos.second(), meter::now());
        let next = {
            let mut machine = hellos.machine.borrow_mut();
            hellos.limiter.with(|limiter| machine.next(&mut turn, limiter, second, Waiting::is_gone, now))
        };
        match next {
            Some(Output::Go(waiting, tenant, leave)) => {
                is_futile = false;
                hello::go_on(thread, waiting, (tenant, leave), scratch);
            }
            // It was taken in vain, as one that is refused is.
            Some(Output::Gone(_, tenant)) => hello::charge(thread, tenant),
            Some(Output::Refuse(waiting, tenant, refusal)) => {
                hello::refuse_waiting(thread, waiting, tenant, &refusal);
            }
            None => break,
        }
        if told % AT_ONCE == 0 {
            tokio::task::yield_now().await;
        }
    }
    hellos.futile.set(is_futile);
}

/// Files ran out: refuses up to `most` of those of whoever has the most of them; says whether there were any.
pub(crate) fn give_up(thread: &Thread, most: usize) -> bool {
    let hellos = &thread.hellos;
    let largest = hellos.machine.borrow().largest();
    let Some(largest) = largest else { return false };
    for _ in 0..most {
        let next = {
            let mut machine = hellos.machine.borrow_mut();
            hellos.limiter.with(|limiter| machine.give_up(largest, limiter, meter::now()))
        };
        let Some((waiting, tenant, refusal)) = next else { break };
        hello::refuse_waiting(thread, waiting, tenant, &refusal);
    }
    true
}

/// To be called when the thread is about to wait for its sockets: if the second one may soon have nothing to do, the
/// driver has another look, unless the last one was in vain.
pub(crate) fn on_park() {
    IDLE.with_borrow(|hellos| {
        let Some(hellos) = hellos.as_ref().filter(|hellos| !hellos.is_empty() && !hellos.futile.get()) else { return };
        if hellos.second().has_spare {
            hellos.look.notify_one();
        }
    });
}
