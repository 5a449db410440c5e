//! Parts of one limit that lend each other tokens, without ever letting more pass than the whole.
//!
//! A limit (r, b) is [split](crate::limit::split) among members: each has a bucket of its own, the purse, with a rate
//! of its own and a share of the burst, its base. Alone, each part delays more than the whole would: one is empty while
//! another is full. So a member at which somebody waits asks another for tokens, by frames that may be lost, doubled,
//! late and out of order, and a member may crash, stand still or be cut off at any time.
//!
//! | module | its one job |
//! |---|---|
//! | `frame` | what members say to each other |
//! | `purse` | where a member keeps its tokens |
//! | `account` | who has lent what to whom in one circle |
//! | `link` | a session with one peer, and until when it is in force at either end |
//! | `machine` | what one member has, and what it does when something comes or is due |
//! | `trade` | when it asks whom for tokens, and what it gives whoever asks |
//! | `leave` | how it leaves a circle |
//!
//! # Rules
//!
//! 1. A loan moves depth together with tokens: the lender's bucket is shallower by what it gave, the borrower's deeper.
//!    A frame says how much was given in the session altogether, and the receiver books what it has not booked yet.
//! 2. A member lends what is its own: never what it borrowed, and never the last `keep` tokens of its base. What it
//!    owes it may always give back.
//! 3. Tokens are given and booked in a session of two members. Each end numbers it, and a frame counts only if it has
//!    both numbers and echoes a stamp of the receiver that is younger than the lease. A member that meets a greater
//!    number closes its session and begins another.
//! 4. Loans end without a common clock. The borrower's end is the latest of its own stamps that was echoed, plus the
//!    lease. The lender's end is the receipt of the latest stamp that it echoed, plus the lease, plus what two clocks
//!    may differ by in that time.
//! 5. At its borrower's end a member closes the session: it cuts off the depth that it borrowed, with the tokens that
//!    no longer fit, and gives and books nothing. At its lender's end it gets back the depth that it lent, without
//!    tokens.
//! 6. A member that has forgotten what it lent begins with an empty purse of depth `keep`, and has its base when a
//!    lease of its lender's length is over.
//! 7. A member asks when somebody would wait longer for its own tokens than a frame is worth: it asks the one that has
//!    the most as far as is known, and gets a third of what that has above it. Nobody is asked that probably has little,
//!    unless the wait has become long. Depth without tokens moves as well: whoever asks has room to spare, and sends it
//!    along; of what the other then has, a quarter comes back. So the two share tokens and room, and neither loses what
//!    it mints for want of room.
//! 8. Circles share frames: a request waits for those of other circles, and takes along all that its receiver is in,
//!    whether they have less than the receiver or more.
//! 9. While something is lent, a link says something every third of a lease; else it is silent.
//! 10. A member that leaves a circle gives back what it has of the others and says so until they answer. From then on
//!     neither end books more than its own, and what else was under way falls back to whoever sent it, without tokens.
//!     A member gives nothing to a peer of which it has heard nothing in the session: it may not have joined yet, and
//!     would not know that it has left.
//!
//! # Why the whole is never exceeded
//!
//! Let P be the tokens in all purses and under way. P is at most b: the depths of all purses and what is under way add
//! up to at most b, as a loan leaves the one before it reaches the other (1), and comes back only when it is gone
//! there. That is so because every stamp is received after it was sent: so the lender's end is after the borrower's in
//! true time (4), for whichever frame the borrower heard last, and a frame that is older than the lease is not heard
//! any more (3). Nor can a member that cuts off its loans owe anything (2), and one that forgot its loans has what it
//! never lends, `keep`, until they are over (6). P grows only as time passes, by r at most, falls by one with every
//! token taken, and nothing else adds to it: depth comes back empty (5, 6). So in any span t at most b + r·t tokens are
//! taken, whatever is lost, late, cut off or dead. With clocks that run fast by a part d, r is r·(1 + d), as for any
//! bucket.
//!
//! A clock that stands still while the machine sleeps would end loans too late: then call
//! [`on_slept`](Lending::on_slept) before anything is taken. A machine that is stopped by its hypervisor together with
//! all of its clocks cannot tell, and may use its loans for as long as it stood still.

mod account;
mod frame;
mod leave;
mod link;
mod machine;
mod purse;
mod trade;

pub use account::Position;
pub use frame::{Asks, Circle, Entry, Frame, Member, Stamp};
pub use leave::Leave;
pub use machine::{CIRCLES_MAX, ENTRIES_MAX, LendConfig, Lending, Memory, OpenError, PEERS_MAX};
pub use purse::{Purse, Purses};
