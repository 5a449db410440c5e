//! What measures: histograms of delays, whole and over a sliding window.

pub mod histogram;
pub mod window;

pub use histogram::Histogram;
pub use window::{WindowConfig, WindowedHistogram};
