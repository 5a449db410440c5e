//! The web console: its API, its event stream and the embedded pages.
