//! Experiments: a TOML file in, a table, JSON and a figure out.
