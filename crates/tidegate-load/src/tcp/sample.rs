//! Asks TCP about every bulk flow at even times.

use std::net::TcpStream;

use tidegate_core::Instant;
use tidegate_runtime::clock;

use super::info::Info;
use super::prepare_measuring_thread;
use super::probe::Times;
use crate::error::LoadError;
use crate::poll::Poller;

/// All flows at one moment.
#[derive(Clone, Debug)]
pub(super) struct Look {
    pub(super) at: Instant,
    pub(super) flows: Vec<Info>,
}

/// Looks at `flows` until `times` are over; moments that were missed are left out.
pub(super) fn sample(flows: &[TcpStream], times: Times) -> Result<Vec<Look>, LoadError> {
    prepare_measuring_thread()?;
    let mut poller = Poller::new()?;
    let (mut looks, mut next) = (Vec::new(), times.from);
    while next < times.until {
        poller.sleep(next)?;
        let at = clock::now();
        looks.push(Look { at, flows: flows.iter().map(Info::of).collect::<Result<_, _>>()? });
        let missed = clock::now().nanos_since(next) / times.every_ns;
        next = next.plus_nanos((missed + 1).saturating_mul(times.every_ns));
    }
    Ok(looks)
}
