//! Experiments: a TOML file in, a table, JSON and a figure out.
//!
//! Everything runs in virtual time through the production machines: the simulator supplies arrivals and clocks, and
//! what limits is the core's own gate.
//!
//! | module | its one job |
//! |---|---|
//! | [`bucket`] | what a token bucket does to arrivals: exact, and simulated |
//! | [`divided`] | one limit over several proxies |
//! | [`experiment`] | experiment files, their kinds and their results |
//! | [`graph`] | services that call each other, one of them short |
//! | [`release_law`] | messages through the broker's machine, every window of releases checked |
//! | [`neighbours`] | tenants at one proxy, and the limiters between them |
//! | [`placement`] | a topic that a planner places on brokers |
//! | [`proxy`] | one core of the proxy, its loop and its machines |
//! | [`rpc`] | a server, its clients and a scheme of overload control between them |
//! | [`shaper`] | classes of HTB, TCP flows and the shaper's machine |
//! | [`figure`] | figures as SVG |
//! | [`table`] | tables for people |
//! | [`statistics`] | how sure a simulated number is |

pub mod bucket;
pub mod divided;
pub mod experiment;
pub mod figure;
pub mod graph;
pub mod neighbours;
pub mod placement;
pub mod proxy;
pub mod release_law;
pub mod rpc;
pub mod shaper;
pub mod statistics;
pub mod table;
