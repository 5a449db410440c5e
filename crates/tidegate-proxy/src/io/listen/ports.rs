//! Ports: opened for all threads at once, and what holds for those who come by one of them.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::{Arc, Weak};

use super::settings::Settings;
use crate::config::Listener;
use crate::error::ProxyError;
use crate::io::listen::bind;

/// A port that is open, with a socket of its own for each core: the kernel spreads connections over them.
#[derive(Debug)]
pub(crate) struct Port {
    /// As the file has it: port 0 for one that the system picked.
    configured: SocketAddr,
    pub(crate) address: SocketAddr,
    slot: Arc<Slot>,
    sockets: Vec<Vec<Arc<TcpListener>>>,
}

/// A port of the process that this one takes over from.
#[derive(Debug)]
pub struct Passed {
    /// As the file had it.
    pub configured: SocketAddr,
    /// Of its threads, in their order.
    pub sockets: Vec<TcpListener>,
}

/// A small number for each port that is open, or of which some connection waits to be ended. It tells ports apart.
#[derive(Debug)]
struct Slot(usize);

/// The slots that there are.
#[derive(Default, Debug)]
pub(crate) struct Slots(Vec<Weak<Slot>>);

impl Slots {
    /// The lowest one that is free.
    fn take(&mut self) -> Arc<Slot> {
        let free = self.0.iter().position(|slot| slot.strong_count() == 0);
        let place = free.unwrap_or_else(|| {
            self.0.push(Weak::new());
            self.0.len() - 1
        });
        let slot = Arc::new(Slot(place));
        self.0[place] = Arc::downgrade(&slot);
        slot
    }
}

/// The ports of `listeners`, in their order, for so many cores: those that are open `before` stay, those of `passed` are
/// taken out of it, the others are opened. If one cannot be had, none is opened.
pub(crate) fn open(
    listeners: &[Listener],
    cores: usize,
    before: &[Arc<Port>],
    passed: &mut Vec<Passed>,
    slots: &mut Slots,
) -> Result<Arc<[Arc<Port>]>, ProxyError> {
    let mut before: Vec<_> = before.iter().collect();
    let one = |listener: &Listener| {
        let address = listener.address;
        if let Some(place) = before.iter().position(|port| port.configured == address) {
            return Ok(Arc::clone(before.remove(place)));
        }
        let given = passed.iter().position(|passed| passed.configured == address).map(|place| passed.remove(place));
        let port = match given {
            Some(given) => Port::take(given, cores, slots.take()),
            None => Port::open(address, cores, slots.take()),
        };
        port.map(Arc::new).map_err(|source| ProxyError::Listen { address, source })
    };
    listeners.iter().map(one).collect()
}

impl Port {
    /// Opens it once for each core. A port that the system picks is the same for all.
    fn open(configured: SocketAddr, cores: usize, slot: Arc<Slot>) -> io::Result<Self> {
        let mut address = configured;
        let mut sockets = Vec::with_capacity(cores);
        for _ in 0..cores {
            let socket = bind::listen(address)?;
            address = socket.local_addr()?;
            sockets.push(vec![Arc::new(socket)]);
        }
        Ok(Self { configured, address, slot, sockets })
    }

    /// Takes all sockets of one that is open: each has connections that wait in it. Where there are fewer cores than
    /// sockets, they share them out; where there are more, the others get new ones beside these.
    fn take(passed: Passed, cores: usize, slot: Arc<Slot>) -> io::Result<Self> {
        let Passed { configured, sockets: given } = passed;
        let first = given.first().ok_or(io::ErrorKind::InvalidInput)?;
        let address = first.local_addr()?;
        let mut sockets: Vec<Vec<_>> = (0..cores).map(|_| Vec::new()).collect();
        for (place, socket) in given.into_iter().enumerate() {
            socket.set_nonblocking(true)?;
            sockets[place % cores].push(Arc::new(socket));
        }
        for without in sockets.iter_mut().filter(|sockets| sockets.is_empty()) {
            without.push(Arc::new(bind::listen(address)?));
        }
        Ok(Self { configured, address, slot, sockets })
    }

    /// As a successor gets it: its address in the file, and its sockets.
    pub(crate) fn to_pass(&self) -> (SocketAddr, Vec<Arc<TcpListener>>) {
        (self.configured, self.sockets.iter().flatten().cloned().collect())
    }

    /// The sockets that this core takes connections from.
    pub(crate) fn of_core(&self, core: usize) -> impl Iterator<Item = &Arc<TcpListener>> {
        self.sockets.get(core).into_iter().flatten()
    }
}

/// A port, as one thread has it.
#[derive(Debug)]
pub(crate) struct Entrance {
    slot: Arc<Slot>,
    door: RefCell<Rc<Door>>,
    closed: Rc<Cell<bool>>,
}

/// What holds for a connection from when it is taken: a reload changes it for those who come later.
#[derive(Debug)]
pub(crate) struct Door {
    pub(crate) listener: Listener,
    /// If TLS is spoken.
    pub(crate) tls: Option<Arc<rustls::ServerConfig>>,
    /// Where those who came by this port and were refused wait for their end.
    pub(crate) slot: usize,
    closed: Rc<Cell<bool>>,
}

impl Entrance {
    /// Of `port`, which is at `place` in `settings`.
    pub(crate) fn new(port: &Port, settings: &Settings, place: usize) -> Rc<Self> {
        let closed = Rc::default();
        let door = Door::new(&port.slot, settings, place, &closed);
        Rc::new(Self { slot: Arc::clone(&port.slot), door: RefCell::new(door), closed })
    }

    pub(crate) fn is_of(&self, port: &Port) -> bool {
        Arc::ptr_eq(&self.slot, &port.slot)
    }

    /// From now on what `settings` say holds for those who come.
    pub(crate) fn change(&self, settings: &Settings, place: usize) {
        *self.door.borrow_mut() = Door::new(&self.slot, settings, place, &self.closed);
    }

    /// Takes nobody from now on but those that the kernel holds.
    pub(crate) fn close(&self) {
        self.closed.set(true);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.get()
    }

    pub(crate) fn door(&self) -> Rc<Door> {
        Rc::clone(&self.door.borrow())
    }

    pub(crate) fn slot(&self) -> usize {
        self.slot.0
    }
}

impl Door {
    fn new(slot: &Slot, settings: &Settings, place: usize, closed: &Rc<Cell<bool>>) -> Rc<Self> {
        Rc::new(Self {
            listener: settings.config.listeners[place].clone(),
            tls: settings.tls.get(place).cloned().flatten(),
            slot: slot.0,
            closed: Rc::clone(closed),
        })
    }

    /// Nobody comes by it any more. Who did is served to the end of what he asks for.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ProxyProtocolIn, TlsPolicy};

    fn listener(address: SocketAddr) -> Listener {
        Listener {
            address,
            tls: false,
            tls_policy: TlsPolicy::default(),
            http2: true,
            http1: true,
            proxy_protocol: ProxyProtocolIn::Off,
        }
    }

    #[test]
    fn a_port_that_stays_keeps_its_sockets_and_one_that_cannot_be_had_opens_none() {
        let any = listener(([127, 0, 0, 1], 0).into());
        let mut slots = Slots::default();
        let before = open(&[any.clone(), any.clone()], 2, &[], &mut Vec::new(), &mut slots).unwrap();
        assert_eq!(before.iter().map(|port| port.slot.0).collect::<Vec<_>>(), [0, 1]);
        let after = open(std::slice::from_ref(&any), 2, &before, &mut Vec::new(), &mut slots).unwrap();
        assert!(Arc::ptr_eq(&after[0], &before[0]));

        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let taken = taken.local_addr().map(|address| (taken, address)).unwrap();
        let error =
            open(&[any.clone(), any.clone(), any.clone(), listener(taken.1)], 2, &after, &mut Vec::new(), &mut slots);
        assert!(error.unwrap_err().to_string().contains(&taken.1.to_string()));

        drop(before);
        let again = open(&[any.clone(), any], 2, &after, &mut Vec::new(), &mut slots).unwrap();
        assert_eq!(again[1].slot.0, 1, "the place of one that is gone is free");
    }

    #[test]
    fn every_socket_of_a_port_that_is_taken_over_has_a_thread() {
        let any = listener(([127, 0, 0, 1], 0).into());
        let mut slots = Slots::default();
        let before = open(std::slice::from_ref(&any), 3, &[], &mut Vec::new(), &mut slots).unwrap();
        for (cores, wanted) in [(1, [3].as_slice()), (2, &[2, 1]), (3, &[1, 1, 1]), (4, &[1, 1, 1, 1])] {
            let (configured, sockets) = before[0].to_pass();
            let sockets = sockets.iter().map(|socket| socket.try_clone().unwrap()).collect();
            let mut passed = vec![Passed { configured, sockets }];
            let after = open(std::slice::from_ref(&any), cores, &[], &mut passed, &mut slots).unwrap();
            assert_eq!((after[0].address, passed.len()), (before[0].address, 0));
            let of_each: Vec<_> = (0..cores).map(|core| after[0].of_core(core).count()).collect();
            assert_eq!(of_each, wanted);
        }
    }
}
