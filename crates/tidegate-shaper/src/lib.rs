//! A host agent that keeps the queues of HTB short by rewriting the receive windows of TCP in eBPF.
//!
//! | module | its one job |
//! |---|---|
//! | [`machine`] | the trees and their changes, as values; pure |

pub mod machine;
