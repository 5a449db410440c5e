//! Tenants at one proxy: what they ask for, tick by tick, and what a limiter gives them.
//!
//! | module | its one job |
//! |---|---|
//! | [`trace`] | what tenants ask for |
//! | [`scheme`] | the limiters that are compared, behind one face |
//! | [`mod@play`] | a trace against a limiter, in virtual time |

pub mod play;
pub mod scheme;
pub mod trace;

pub use play::{Played, Row, Tick, play};
pub use scheme::Scheme;
pub use tidegate_proxy::machine::neighbours::Mode;
pub use tidegate_proxy::machine::resource::{Kind, Resource};
pub use trace::{Arrivals, Format, TenantTrace, Trace, TraceError};
