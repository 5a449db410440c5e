//! What measures: histograms of delays, whole and over a sliding window, and values by whole seconds.

pub mod histogram;
pub mod seconds;
pub mod window;

pub use histogram::Histogram;
pub use window::{WindowConfig, WindowedHistogram};
