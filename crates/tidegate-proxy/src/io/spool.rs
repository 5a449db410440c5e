//! Large bodies wait on disk, so that a slow peer costs neither memory nor a connection to an upstream.
//!
//! A request's body above the configured size is read to its end before the upstream is asked. Of an answer the part that
//! its client does not take waits, so that the upstream is done with it: of HTTP/1 clients, for HTTP/2 asks for more of an
//! answer only when its stream has room. Then the upstream waits. Files have no name: they vanish with the process. A pool
//! of a few threads reads and writes; each body has one operation under way at most.
//!
//! | module | its one job |
//! |---|---|
//! | `answer` | an answer, of which what its client does not take waits |
//! | `folder` | the folder, its threads, and how much is in it |
//! | `memory` | what they hold in memory, counted as their tenant's |
//! | `request` | a request's body, read to its end |
//! | `room` | who holds how much |
//! | `spooled` | a body on disk, as it is read back |
//! | `stored` | the file of one body |

mod answer;
pub(crate) mod folder;
mod memory;
mod request;
mod room;
mod spooled;
mod stored;

pub(crate) use self::answer::{Spooling, response};
pub(crate) use self::memory::InMemory;
pub(crate) use self::request::request;
pub(crate) use self::room::Holder;
pub(crate) use self::spooled::Spooled;
