//! Keeps every bulk flow's send buffer full.

use std::io::{ErrorKind, Write as _};
use std::net::TcpStream;

use tidegate_runtime::clock;

use crate::error::LoadError;
use crate::load_thread::StopSign;
use crate::poll::{Interest, Poller};

/// What is offered at once: the copy of more would hold up for long who waits for this processor.
const WRITE_BYTES: usize = 32 * 1024;
/// How often the thread looks whether it is to end.
const LOOK_NS: u64 = 20_000_000;

/// Writes to all of `flows` until told to end.
pub(super) fn write(flows: &[TcpStream], stop: &StopSign) -> Result<(), LoadError> {
    let mut poller = Poller::new()?;
    for (token, flow) in (0..).zip(flows) {
        let watch = poller.add(flow, token).and_then(|()| poller.modify(flow, token, Interest::ReadWrite));
        watch.map_err(LoadError::os("watch a socket"))?;
    }
    let bytes = vec![0; WRITE_BYTES];
    while !stop.is_up() {
        poller.wait(clock::now().plus_nanos(LOOK_NS), 0)?;
        for index in 0.. {
            let Some(ready) = poller.ready(index) else { break };
            let mut flow = &flows[usize::try_from(ready.token).expect("a token of ours")];
            match flow.write(&bytes) {
                Ok(_) => {}
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(error) => return Err(LoadError::os("write to a bulk flow")(error)),
            }
        }
    }
    Ok(())
}
