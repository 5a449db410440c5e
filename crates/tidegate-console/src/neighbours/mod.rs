//! Proxies: who of their neighbours uses what, who lends to whom, and who was refused.
//!
//! | module | its one job |
//! |---|---|
//! | `snapshot` | `GET /api/v1/neighbours` of a proxy's admin API, as far as the console reads it |
//! | `view` | what a page is shown of it |
//! | `ledger` | snapshots to views: the busiest tenants alone, the rest summed, counters as rates |

mod ledger;
mod snapshot;
mod view;

pub(crate) use ledger::NeighbourLedger;
pub(crate) use snapshot::NeighbourSnapshot;
pub(crate) use view::Proxy;
