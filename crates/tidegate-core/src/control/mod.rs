//! What decides: controllers turn measurements into the numbers that limiters enforce.
//!
//! | module | what it turns | by what it measures |
//! |---|---|---|
//! | [`window`] | the receive windows of the TCP flows in a class of a rate limiter | the class's queue, CE marks of the network |
//!
//! A controller is told samples and `now`; between them it is asked for its manipulated variable. It draws no random
//! numbers of its own: what dithers is told a coin.

pub mod window;
