//! A host agent that keeps the queues of HTB short by rewriting the receive windows of TCP in eBPF.

pub mod machine;
