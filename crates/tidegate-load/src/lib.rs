//! Open-loop load and raw clients for demo, benchmarks and attacks.
