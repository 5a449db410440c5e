//! A discrete-event kernel: virtual clock, seeded randomness, network, hosts, workloads, traces.
