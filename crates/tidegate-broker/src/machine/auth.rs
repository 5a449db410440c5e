//! What a client may do, as its AUTH server said.
